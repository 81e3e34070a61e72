#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    qbert_fuzz::tokenizer::run(data);
});
