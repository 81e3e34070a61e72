//! One list of implementations per kind of kernel: the float instruction sets (`simd/mod.rs`) and the integer
//! multipliers (`int/multiplier.rs`) are both declared with [`implementations!`].
//!
//! The list is the only place that knows all implementations. Detection, lookup by name, error messages, tests and
//! dispatch follow from it. Dispatch is a `match` over an enum rather than a trait object, so that the compiler sees
//! every implementation and inlines across the call.

/// Declares an enum of implementations in order of preference, best first.
///
/// Each line is `Variant: Type = "name" if "arch";`. `Type` is a proof of what the CPU has, with
/// `fn detect() -> Option<Type>`; the architecture is left out where the code runs anywhere. The macro also defines
/// the `match` over all implementations under the name given after `dispatch`; the `$` in front of it is needed
/// because a macro cannot write one itself.
macro_rules! implementations {
    (
        $(#[$attribute:meta])*
        enum $List:ident, dispatch $d:tt $dispatch:ident;
        $($(#[$gate:meta])* $Variant:ident: $Type:ty = $name:literal $(if $arch:literal)?;)+
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum $List {
            $($(#[$gate])* $(#[cfg(target_arch = $arch)])? $Variant($Type),)+
        }

        impl $List {
            /// The names of all implementations, on every architecture, best first.
            #[allow(dead_code, reason = "not every list is looked up by name")]
            pub(crate) const NAMES: &'static [&'static str] = &[$($(#[$gate])* $name),+];

            /// Everything this CPU can run, best first.
            pub(crate) fn supported() -> Vec<Self> {
                let mut found = Vec::new();
                $($(#[$gate])* $(#[cfg(target_arch = $arch)])? found.extend(<$Type>::detect().map(Self::$Variant));)+
                found
            }

            pub(crate) fn name(self) -> &'static str {
                match self {
                    $($(#[$gate])* $(#[cfg(target_arch = $arch)])? Self::$Variant(_) => $name,)+
                }
            }
        }

        $($(#[$gate])* $(#[cfg(target_arch = $arch)])?
        impl From<$Type> for $List {
            fn from(proof: $Type) -> Self {
                Self::$Variant(proof)
            }
        })+

        macro_rules! $dispatch {
            ($d choice:expr, $d proof:ident => $d call:expr) => {
                match $d choice {
                    $($(#[$gate])* $(#[cfg(target_arch = $arch)])? $List::$Variant($d proof) => $d call,)+
                }
            };
        }
    };
}

pub(crate) use implementations;
