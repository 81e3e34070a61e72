//! The compiled part of the Python package: `qbert._qbert`.
//!
//! It is thin on purpose. Whatever has a docstring, a default or the shape of another library's results is Python, in
//! `python/qbert`; here is what has to be fast or has to release the interpreter's lock. `_qbert.pyi` describes it.

mod arrow;
mod errors;
mod jobs;
mod session;

use pyo3::prelude::*;

/// The `qbert` command with these words as its arguments; returns the exit code.
#[pyfunction]
fn main(py: Python<'_>, arguments: Vec<String>) -> u8 {
    // Signals are the command's while it runs, and the interpreter has nothing else to do.
    py.detach(|| qbert_cli::main_with(arguments))
}

#[pymodule]
fn _qbert(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<session::Session>()?;
    module.add_class::<arrow::ArrowBatches>()?;
    module.add_function(wrap_pyfunction!(jobs::run, module)?)?;
    module.add_function(wrap_pyfunction!(jobs::analyze, module)?)?;
    module.add_function(wrap_pyfunction!(jobs::report_html, module)?)?;
    module.add_function(wrap_pyfunction!(main, module)?)
}
