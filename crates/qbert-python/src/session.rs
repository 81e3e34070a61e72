//! An open model. Calls release the interpreter's lock, look for Ctrl-C between batches, and hand arrays over without a copy.

use std::path::PathBuf;

use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayMethods};
use pyo3::exceptions::PyUserWarning;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};
use qbert::{
    Answers, Classification, EmbedOptions, Head, Input, LabelScore, LabelSet, Pooling, Prediction, SessionOptions,
    Storage, Tagging, Vectors,
};

use crate::errors::{exception, internal, named, wrong_type};

/// Inputs between two looks for Ctrl-C. Batches change no result.
const TOGETHER: usize = 256;

#[pyclass(frozen, module = "qbert._qbert")]
pub(crate) struct Session {
    inner: qbert::Session,
}

#[pymethods]
impl Session {
    #[new]
    #[pyo3(signature = (path, content, threads, max_length, max_input_bytes, storage))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        content: Option<Vec<u8>>,
        threads: Option<usize>,
        max_length: Option<usize>,
        max_input_bytes: Option<usize>,
        storage: &str,
    ) -> PyResult<Self> {
        let mut options = SessionOptions::default().max_len(max_length);
        options.threads = threads.unwrap_or(options.threads);
        options.max_input_bytes = max_input_bytes.unwrap_or(options.max_input_bytes);
        options.storage = match storage {
            "auto" => Storage::Auto,
            "memory" => Storage::Memory,
            "mapped" => Storage::Mapped,
            other => {
                let message = format!("storage is {other:?}");
                return Err(named(py, "InputError", &message, Some("use 'auto', 'memory' or 'mapped'")));
            }
        };
        let opened = py.detach(|| match content {
            Some(bytes) => qbert::Session::from_bytes(&path.to_string_lossy(), bytes, options),
            None => qbert::Session::open(&path, options),
        });
        Ok(Self { inner: opened.map_err(|error| exception(py, &error.into()))? })
    }

    /// One dict per input, as `qbert predict --json` prints it.
    fn predict<'py>(&self, py: Python<'py>, inputs: &Bound<'py, PyList>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let count = inputs.len();
        let mut results = Vec::with_capacity(count);
        let mut has_warned = false;
        for first in (0..count).step_by(TOGETHER) {
            let batch = first..(first + TOGETHER).min(count);
            let batch = batch.map(|index| self.input(&inputs.get_item(index)?)).collect::<PyResult<Vec<Input>>>()?;
            if let Some(warning) = batch.iter().find_map(|input| self.inner.check(input).ok().flatten())
                && !has_warned
            {
                has_warned = true;
                let text = std::ffi::CString::new(warning.to_string()).map_err(|_| internal("a warning with a NUL"))?;
                PyErr::warn(py, &py.get_type::<PyUserWarning>(), &text, 3)?;
            }
            let answers = py.detach(|| self.inner.predict_each(batch));
            for (offset, answer) in answers.into_iter().enumerate() {
                let answer = answer.map_err(|error| {
                    let error = qbert::Error::from(error);
                    let error = if count == 1 { error } else { error.about(&format!("input {}", first + offset)) };
                    exception(py, &error)
                })?;
                results.push(dict_of(py, &answer)?);
            }
            py.check_signals()?;
        }
        Ok(results)
    }

    /// An array of one row per text.
    fn embed<'py>(
        &self,
        py: Python<'py>,
        texts: &Bound<'py, PyList>,
        pooling: Option<&str>,
        normalize: Option<bool>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let mut options = EmbedOptions::from(&self.inner.embedder());
        if let Some(name) = pooling {
            let found = Pooling::NAMES.into_iter().find(|(known, _)| *known == name);
            options.pooling = found.map(|(_, pooling)| pooling).ok_or_else(|| {
                let names = Pooling::NAMES.map(|(name, _)| format!("'{name}'")).join(", ");
                named(py, "InputError", &format!("pooling is {name:?}"), Some(&format!("use one of {names}")))
            })?;
        }
        options.normalize = normalize.unwrap_or(options.normalize);
        let (count, width) = (texts.len(), options.dimensions.unwrap_or(self.inner.config().hidden_size));
        let mut values = Vec::new();
        for first in (0..count).step_by(TOGETHER) {
            let batch = strings(texts, first..(first + TOGETHER).min(count))?;
            let found = py.detach(|| self.inner.embed(&batch, options)).map_err(|error| at(py, first, error))?;
            let own = found.vectors.into_vec();
            if values.is_empty() {
                values = own;
                values.reserve_exact((count - batch.len()) * width);
            } else {
                values.extend_from_slice(&own);
            }
            py.check_signals()?;
        }
        values.into_pyarray(py).reshape([count, width])
    }

    /// For each text the vectors of its tokens, their ids, and their places in characters.
    fn hidden_states<'py>(&self, py: Python<'py>, texts: &Bound<'py, PyList>) -> PyResult<Vec<TokenStates<'py>>> {
        let mut all = Vec::with_capacity(texts.len());
        for first in (0..texts.len()).step_by(TOGETHER) {
            let batch = strings(texts, first..(first + TOGETHER).min(texts.len()))?;
            let found = py.detach(|| self.inner.hidden_states(&batch)).map_err(|error| at(py, first, error))?;
            for (text, states) in batch.iter().zip(found) {
                let ids: Vec<u32> = states.tokens.iter().map(|token| token.id).collect();
                let spans = states.tokens.iter().map(|token| token.bytes.clone());
                let places =
                    spans.map(|bytes| bytes.map(|span| (characters(text, span.start), characters(text, span.end))));
                all.push((matrix(py, states.vectors)?, ids.into_pyarray(py), places.collect()));
            }
            py.check_signals()?;
        }
        Ok(all)
    }

    /// Reads every byte of the model again and compares its checksums.
    fn verify(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.inner.model().verify()).map_err(|error| exception(py, &error.into()))
    }

    #[getter]
    fn path(&self) -> PathBuf {
        self.inner.model().path().to_owned()
    }

    #[getter]
    fn file_size(&self) -> usize {
        self.inner.model().file_len()
    }

    #[getter]
    fn head(&self) -> Option<&'static str> {
        match self.inner.head() {
            Head::None => None,
            Head::SequenceClassification => Some("text-classification"),
            Head::TokenClassification => Some("token-classification"),
            Head::QuestionAnswering => Some("question-answering"),
        }
    }

    /// Whether a model of one value for each pair of texts, such as a reranker.
    #[getter]
    fn scores_pairs(&self) -> bool {
        self.inner.is_reranker()
    }

    #[getter]
    fn task(&self) -> Option<&'static str> {
        self.inner.task().map(|task| task.name())
    }

    #[getter]
    fn labels(&self) -> Vec<&str> {
        self.inner.labels().iter().map(String::as_str).collect()
    }

    #[getter]
    fn hidden_size(&self) -> usize {
        self.inner.config().hidden_size
    }

    #[getter]
    fn layers(&self) -> usize {
        self.inner.config().layers
    }

    #[getter]
    fn max_length(&self) -> usize {
        self.inner.max_len()
    }

    #[getter]
    fn threads(&self) -> usize {
        self.inner.compute().threads().count()
    }

    #[getter]
    fn kernels(&self) -> String {
        self.inner.compute().kernels().to_string()
    }

    #[getter]
    fn plan(&self) -> String {
        self.inner.plan().to_toml()
    }

    #[getter]
    fn provenance(&self) -> std::collections::BTreeMap<String, String> {
        self.inner.model().provenance().clone()
    }
}

/// The vectors, ids and places of a text's tokens.
type TokenStates<'py> = (Bound<'py, PyArray2<f32>>, Bound<'py, PyArray1<u32>>, Vec<Place>);

/// The first and the last character of a token, or `None` for one that the text does not have.
type Place = Option<(usize, usize)>;

impl Session {
    /// A string is a text, a tuple a pair of texts or a question and its context, a list the words of a sentence.
    fn input(&self, value: &Bound<'_, PyAny>) -> PyResult<Input> {
        let part = |part: &Bound<'_, PyAny>| string(part.cast::<PyString>()?);
        if let Ok(text) = value.cast::<PyString>() {
            return Ok(Input::text(&*string(text)?));
        }
        if let Ok(pair) = value.cast::<PyTuple>() {
            let (first, second) = (part(&pair.get_item(0)?)?, part(&pair.get_item(1)?)?);
            return Ok(match self.inner.head() {
                Head::QuestionAnswering => Input::question(&*first, &*second),
                _ => Input::pair(&*first, &*second),
            });
        }
        let words =
            value.cast::<PyList>()?.iter().map(|word| Ok(part(&word)?.to_string())).collect::<PyResult<Vec<_>>>()?;
        Ok(Input::words(words))
    }
}

/// The exception for an error of some texts, the first of which is number `first` of all.
fn at(py: Python<'_>, first: usize, error: impl Into<qbert::Error>) -> PyErr {
    let error: qbert::Error = error.into();
    exception(py, &if first == 0 { error } else { error.about(&format!("counted from input {first}")) })
}

/// A string, or an exception for one that has no UTF-8 form.
fn string(text: &Bound<'_, PyString>) -> PyResult<PyBackedStr> {
    PyBackedStr::try_from(text.clone()).map_err(|error| {
        let py = text.py();
        named(
            py,
            "InputError",
            &error.to_string(),
            Some("the text holds half of a character (a surrogate): decode it anew"),
        )
    })
}

fn strings(texts: &Bound<'_, PyList>, range: std::ops::Range<usize>) -> PyResult<Vec<PyBackedStr>> {
    let text = |index| {
        let item = texts.get_item(index)?;
        let text = item.cast::<PyString>().map_err(|_| {
            let what = item.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string());
            wrong_type(texts.py(), &format!("input {index} is of type {what}"), "give strings")
        })?;
        string(text)
    };
    range.map(text).collect()
}

/// The number of characters before a byte.
fn characters(text: &str, byte: usize) -> usize {
    text.get(..byte).map_or(byte, |before| before.chars().count())
}

fn matrix<'py>(py: Python<'py>, vectors: Vectors) -> PyResult<Bound<'py, PyArray2<f32>>> {
    let shape = vectors.shape();
    vectors.into_vec().into_pyarray(py).reshape(shape)
}

fn dict_of<'py>(py: Python<'py>, answer: &Prediction) -> PyResult<Bound<'py, PyDict>> {
    match answer {
        Prediction::Classification(found) => classification(py, found),
        Prediction::LabelSet(found) => label_set(py, found),
        Prediction::Score(found) => {
            let dict = PyDict::new(py);
            dict.set_item(intern!(py, "score"), found.score)?;
            dict.set_item(intern!(py, "removed"), found.removed)?;
            Ok(dict)
        }
        Prediction::Tagging(found) => tagging(py, found),
        Prediction::Answers(found) => answers(py, found),
        _ => Err(internal("an answer of a new kind")),
    }
}

fn label_scores<'py>(py: Python<'py>, scores: &[LabelScore]) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for score in scores {
        let dict = PyDict::new(py);
        dict.set_item(intern!(py, "label"), &score.label)?;
        dict.set_item(intern!(py, "probability"), score.probability)?;
        dict.set_item(intern!(py, "logit"), score.logit)?;
        list.append(dict)?;
    }
    Ok(list)
}

fn label_set<'py>(py: Python<'py>, found: &LabelSet) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item(intern!(py, "labels"), &found.labels)?;
    dict.set_item(intern!(py, "scores"), label_scores(py, &found.scores)?)?;
    dict.set_item(intern!(py, "removed"), found.removed)?;
    Ok(dict)
}

fn classification<'py>(py: Python<'py>, found: &Classification) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item(intern!(py, "label"), &found.label)?;
    dict.set_item(intern!(py, "probability"), found.probability)?;
    dict.set_item(intern!(py, "scores"), label_scores(py, &found.scores)?)?;
    dict.set_item(intern!(py, "removed"), found.removed)?;
    Ok(dict)
}

fn span<'py>(py: Python<'py>, range: &std::ops::Range<usize>) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item(intern!(py, "start"), range.start)?;
    dict.set_item(intern!(py, "end"), range.end)?;
    Ok(dict)
}

fn tagging<'py>(py: Python<'py>, found: &Tagging) -> PyResult<Bound<'py, PyDict>> {
    let entities = PyList::empty(py);
    for entity in &found.entities {
        let dict = PyDict::new(py);
        dict.set_item(intern!(py, "kind"), &entity.kind)?;
        dict.set_item(intern!(py, "text"), &entity.text)?;
        dict.set_item(intern!(py, "words"), span(py, &entity.words)?)?;
        dict.set_item(intern!(py, "characters"), span(py, &entity.characters)?)?;
        dict.set_item(intern!(py, "probability"), entity.probability)?;
        entities.append(dict)?;
    }
    let dict = PyDict::new(py);
    dict.set_item(intern!(py, "entities"), entities)?;
    dict.set_item(intern!(py, "words"), &found.words)?;
    dict.set_item(intern!(py, "tags"), &found.tags)?;
    dict.set_item(intern!(py, "probabilities"), &found.probabilities)?;
    dict.set_item(intern!(py, "removed"), found.removed)?;
    Ok(dict)
}

fn answers<'py>(py: Python<'py>, found: &Answers) -> PyResult<Bound<'py, PyDict>> {
    let list = PyList::empty(py);
    for answer in &found.answers {
        let dict = PyDict::new(py);
        dict.set_item(intern!(py, "text"), &answer.text)?;
        dict.set_item(intern!(py, "characters"), span(py, &answer.characters)?)?;
        dict.set_item(intern!(py, "bytes"), span(py, &answer.bytes)?)?;
        dict.set_item(intern!(py, "score"), answer.score)?;
        dict.set_item(intern!(py, "probability"), answer.probability)?;
        list.append(dict)?;
    }
    let dict = PyDict::new(py);
    dict.set_item(intern!(py, "answers"), list)?;
    dict.set_item(intern!(py, "removed"), found.removed)?;
    Ok(dict)
}
