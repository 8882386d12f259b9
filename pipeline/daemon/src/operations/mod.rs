//! Operations: what people have commands and the live page change, each with a record of who did it.
//!
//! A request such as [`RestartRequest`] is one change. A command and an action of the live page use the same request,
//! so a rehearsal, a refusal and a record are the same for both. `record.rs` writes the two records of an operation,
//! `command_text.rs` the command in them. `actions.rs` carries out what the live page asks for.

mod actions;
mod command_text;
mod dead_letters;
mod lanes;
mod past;
mod pause;
mod reconcile;
mod record;
mod refresh;
mod remove;
mod restart;
mod view;

pub use self::actions::{Action, Actions, Carried};
pub use self::command_text::CommandText;
pub use self::dead_letters::{LETTERS_MAX, RetryRequest, chosen};
pub use self::lanes::LaneSelection;
pub use self::past::past;
pub use self::pause::{PauseOutcome, PauseRequest, ResumeOutcome, ResumeRequest};
pub use self::reconcile::{newest_reconciliation, plan_lines, reconcile_until_interrupt, reconciliation_end};
pub use self::record::{Actor, BegunOperation, Recorded, recorded};
pub use self::refresh::{LaneRefresh, RefreshRequest};
pub use self::remove::{Departed, RemoveOutcome, RemoveRequest};
pub use self::restart::RestartRequest;
pub use self::view::OperationView;
