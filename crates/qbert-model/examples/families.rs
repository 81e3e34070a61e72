//! Prints the page of supported families: `cargo run -p qbert-model --example families > docs/reference/families.md`.

#[expect(clippy::print_stdout, reason = "the page is the output")]
fn main() {
    print!("{}", qbert_model::Family::page());
}
