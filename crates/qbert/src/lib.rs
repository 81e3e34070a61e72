//! Small transformer encoders for ordinary CPUs, by the method of the Q-BERT paper: Hessian-aware mixed precision,
//! group-wise quantization to 2–8 bits, quantization-aware fine-tuning, and inference in integers.
//!
//! This crate is the front door, and the only one under semantic versioning. The crates behind it may change.
//!
//! # Use a packed model
//!
//! ```no_run
//! use qbert::{Session, SessionOptions};
//!
//! let session = Session::open("model.qbert", SessionOptions::default())?;
//! for found in session.classify(&["a film to remember", "two hours too long"])? {
//!     println!("{} ({:.1} %)", found.label, 100.0 * found.probability);
//! }
//! # Ok::<(), qbert::Error>(())
//! ```
//!
//! A program that does nothing else should depend on `qbert-runtime`, which has no training code.
//!
//! # Make one
//!
//! ```no_run
//! use qbert::Compute;
//! use qbert::job::{DataSource, Job, Silent, Task, run};
//!
//! let data = DataSource::new(Task::Classify, ["train.csv"]);
//! let mut job = Job::new("my-bert", "my-bert".as_ref(), data, "dev.csv".as_ref(), "run".as_ref());
//! job.plan.bits = vec!["2".parse()?, "4".parse()?];
//! let finished = run(&job, &Compute::detect(2)?, &mut Silent)?;
//! println!("{}", finished.packed.display());
//! # Ok::<(), qbert::Error>(())
//! ```
//!
//! | module | for |
//! |---|---|
//! | the root | a packed model's answers and embeddings |
//! | [`job`] | from a checkpoint and data to a packed model and a report, resumable |
//! | [`plan`] | bits, groups and ranges for every part of a model |
//! | [`pack`] | one small file from a checkpoint, with or without training |
//! | [`report`] | the page that shows the files of a run |

pub use qbert_pipeline::{Error, ErrorKind, Result};
pub use qbert_runtime::{
    Answer, Answers, Classification, Compute, Config, EmbedOptions, Embeddings, Entity, Head, HiddenStates, Input,
    Kernels, LabelScore, LabelSet, Output, PackedModel, Pieces, Pooling, Prediction, Problem, Scope, Score, Session,
    SessionOptions, SpecialIds, Storage, Tagging, Threads, Token, Tokenizer, Tokens, Vectors, Warning,
};

/// The whole job: fine-tune, analyze, plan, quantize, pack, evaluate, report.
pub mod job {
    pub use qbert_documents::{Speed, StepRecord, Summary};
    pub use qbert_hessian::Stop;
    pub use qbert_pipeline::run::{Event, Figures, Finished, Job, Silent, Stage, Training, Watch, read_summary, run};
    pub use qbert_tasks::{Columns, DataSource, Evaluation, Format, LabelSource, Labels, ReadOptions, Task};
    pub use qbert_train::attention_kl::Settings as AttentionSettings;
    pub use qbert_train::landscape::Settings as LandscapeSettings;
    pub use qbert_train::optimizer::OptimizerSettings;
    pub use qbert_train::qat::distill::Distillation;
    pub use qbert_train::qat::student::QatSettings;
    pub use qbert_train::sensitivity::{
        Method as EigenvalueMethod, Settings as AnalysisSettings, Step as AnalysisStep,
    };
    pub use qbert_train::trainer::{Settings as TrainingSettings, Watch as TrainingWatch};
}

/// The bit plan: what is quantized, to how many bits, in which groups, on which ranges.
pub mod plan {
    pub use qbert_documents::{FrontierPoint, MeasuredDrop, PlanSearch, TrainedDrop, TriedPlan};
    pub use qbert_pipeline::planning::search::{
        DropLimit, FoundPlan, Rounding, Search, SearchData, Watch as SearchWatch, find,
    };
    pub use qbert_pipeline::planning::{Model, NewPlan, Origin, PlanRequest, make, read, shape};
    pub use qbert_quant::allocate::budget::Granularity;
    pub use qbert_quant::{
        ActivationPlan, BitWidth, Embedding, EmbeddingPlan, GroupSpec, LayerPlan, Matrix, Metric, ModelShape,
        PaperSize, Plan, Precision, RangeMethod, Site, SitePlan,
    };
}

/// Packing a checkpoint into one small file.
pub mod pack {
    pub use qbert_model::sizes::{FileSize, file_size};
    pub use qbert_pipeline::packing::{CalibrationData, FILE_NAME, Packing};
    pub use qbert_tasks::{Batch, Features};
}

/// The report of a run: one HTML page, Markdown, JSON.
pub mod report {
    pub use qbert_report::read::directory as read;
    pub use qbert_report::{Rendered, Report};
}
