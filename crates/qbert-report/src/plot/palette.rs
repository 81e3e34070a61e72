//! Colours by role, for light and dark, and the styles of marks that use them.
//!
//! The nine steps of the sequential palette run from yellow over green to blue with evenly falling (on dark: rising)
//! lightness in OKLCH, so that they keep their order in greyscale and for every kind of colour blindness. Pairs are blue
//! and vermilion. Marks that differ by sign or method differ in shape too.

/// A colour's role, and its value in the light and the dark theme.
type Role = (&'static str, &'static str, &'static str);

const ROLES: [Role; 36] = [
    ("paper", "#ffffff", "#15181c"),
    ("raised", "#f5f6f7", "#1e2227"),
    ("ink", "#1b1f24", "#e9ecef"),
    ("muted", "#59616b", "#a5aeb8"),
    ("rule", "#d5d9de", "#363c44"),
    ("faint", "#e9ebee", "#282d34"),
    ("first", "#0068a8", "#62b0ee"),
    ("second", "#b8460a", "#ff9a5a"),
    ("third", "#00735a", "#3fc9a2"),
    ("fourth", "#8d3f86", "#dd96d4"),
    ("fifth", "#725a00", "#d8bb45"),
    ("sixth", "#b0124a", "#ff8fab"),
    ("seventh", "#49566a", "#b4c2d6"),
    ("good", "#00694f", "#4fcfa6"),
    ("bad", "#a53b06", "#ffa169"),
    ("none", "#c3c7cc", "#4b525b"),
    ("onnone", "#1b1f24", "#e9ecef"),
    ("notice", "#fdf3e7", "#2b2219"),
    ("s0", "#f7f6d3", "#222a51"),
    ("s1", "#cee3af", "#134471"),
    ("s2", "#98d29a", "#07617f"),
    ("s3", "#52bf97", "#087d8a"),
    ("s4", "#12a59b", "#129a90"),
    ("s5", "#0b8895", "#30b888"),
    ("s6", "#046c8c", "#85cc80"),
    ("s7", "#014f85", "#c5dd86"),
    ("s8", "#1f3172", "#faed9e"),
    ("t0", "#10151a", "#ffffff"),
    ("t1", "#10151a", "#ffffff"),
    ("t2", "#10151a", "#ffffff"),
    ("t3", "#10151a", "#ffffff"),
    ("t4", "#10151a", "#0a0d10"),
    ("t5", "#ffffff", "#0a0d10"),
    ("t6", "#ffffff", "#0a0d10"),
    ("t7", "#ffffff", "#0a0d10"),
    ("t8", "#ffffff", "#0a0d10"),
];

/// Steps of the sequential palette.
pub(crate) const STEPS: usize = 9;

/// How marks look; colours are variables.
const MARKS: &str = include_str!("../../assets/plot.css");

fn theme(dark: bool) -> String {
    ROLES.iter().map(|(name, light, night)| format!("--{name}:{};", if dark { night } else { light })).collect()
}

/// The page's variables for both themes, the reader's choice first, the system's otherwise; paper is always light.
pub(crate) fn page_variables() -> String {
    let (light, dark) = (theme(false), theme(true));
    format!(
        ":root{{color-scheme:light;{light}}}\n\
         @media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}\n\
         :root[data-theme=dark]{{color-scheme:dark;{dark}}}\n\
         @media print{{:root:root:root{{color-scheme:light;{light}}}}}\n"
    )
}

/// Styles of marks, for a page that has the variables.
pub(crate) fn page_marks() -> &'static str {
    MARKS
}

/// Styles for an SVG file: no variables, since not every viewer knows them.
pub(crate) fn standalone_styles() -> String {
    let filled = |dark: bool| {
        let replace = |css: String, (name, light, night): &Role| {
            css.replace(&format!("var(--{name})"), if dark { night } else { light })
        };
        ROLES.iter().fold(MARKS.to_owned(), replace)
    };
    format!("{}@media (prefers-color-scheme:dark){{{}}}", filled(false), filled(true))
}

/// The step of a share from 0 to 1.
pub(crate) fn step(share: f64) -> usize {
    if share.is_finite() { ((share * STEPS as f64) as usize).min(STEPS - 1) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Relative luminance by WCAG 2.
    fn luminance(colour: &str) -> f64 {
        let channel = |at: usize| {
            let value = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5)
    }

    fn contrast(one: &str, other: &str) -> f64 {
        let (one, other) = (luminance(one), luminance(other));
        (one.max(other) + 0.05) / (one.min(other) + 0.05)
    }

    fn role(name: &str) -> Role {
        *ROLES.iter().find(|role| role.0 == name).unwrap_or_else(|| panic!("{name}"))
    }

    #[test]
    fn text_has_contrast_in_both_themes() {
        for name in ["ink", "muted", "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "good", "bad"] {
            for ground in ["paper", "raised", "notice"] {
                let (text, ground) = (role(name), role(ground));
                assert!(
                    contrast(text.1, ground.1) >= 4.5,
                    "{name} on light {}: {}",
                    ground.0,
                    contrast(text.1, ground.1)
                );
                assert!(
                    contrast(text.2, ground.2) >= 4.5,
                    "{name} on dark {}: {}",
                    ground.0,
                    contrast(text.2, ground.2)
                );
            }
        }
        for index in 0..STEPS {
            let (text, ground) = (role(&format!("t{index}")), role(&format!("s{index}")));
            assert!(contrast(text.1, ground.1) >= 4.0, "light step {index}: {}", contrast(text.1, ground.1));
            assert!(contrast(text.2, ground.2) >= 4.0, "dark step {index}: {}", contrast(text.2, ground.2));
        }
    }

    #[test]
    fn the_sequential_palette_keeps_its_order_in_greyscale() {
        let steps: Vec<Role> = (0..STEPS).map(|index| role(&format!("s{index}"))).collect();
        assert!(steps.windows(2).all(|pair| luminance(pair[0].1) > luminance(pair[1].1)));
        assert!(steps.windows(2).all(|pair| luminance(pair[0].2) < luminance(pair[1].2)));
    }

    #[test]
    fn files_have_no_variables_and_the_page_defines_all_it_uses() {
        assert!(!standalone_styles().contains("var("), "{}", standalone_styles());
        for used in MARKS.split("var(--").skip(1) {
            let name = used.split(')').next().unwrap();
            assert!(ROLES.iter().any(|role| role.0 == name), "--{name} is not defined");
        }
    }
}
