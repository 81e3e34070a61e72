//! Prints the page of supported families: `cargo run -p qbert-model --example families > docs/reference/families.md`.

fn main() {
    print!("{}", qbert_model::Family::page());
}
