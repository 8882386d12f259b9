//! Values that pass between the flow and the outside. They know no loop.
//!
//! A reader fills `batch.rs`, and `frame.rs` makes its envelope. A source returns `chunk.rs`, perhaps for a
//! `condition.rs`. A projection turns both into `mutation.rs` for rows of `row.rs`, and a lane commits them with
//! `progress.rs`, of which `refresh.rs` and `withdrawals.rs` are parts. Lookups read `claims.rs` and `relation.rs`,
//! reconciliations leave `past_reconciliation.rs` and `audit.rs`, and commands `operation.rs`. Identifiers of payment
//! documents come from `sequence.rs`, `seen_numbers.rs` has those of captured rows, and `flux_places.rs` says where
//! such documents belong. The methods of [`crate::ports`] use these types.

mod audit;
mod batch;
mod chunk;
mod claims;
mod condition;
mod flux_places;
mod frame;
mod mutation;
mod operation;
mod past_reconciliation;
mod progress;
mod refresh;
mod relation;
mod row;
mod seen_numbers;
mod sequence;
mod table_counts;
mod withdrawals;

pub use audit::{AuditCursor, AuditState, Audited, EntryDrift};
pub use batch::{Batch, BatchBuilder};
pub use chunk::{Chunk, ScanCursor};
pub use claims::{Claims, DeviceClaim, TimeToLive, Token};
pub use condition::{COMPARISONS_MAX, Comparison, Condition, InvalidComparison, Operator};
pub use flux_places::{FluxPlaces, FluxSource, FluxTables};
pub use frame::Framer;
pub use mutation::{
    Flush, Mutation, MutationAction, OrderedMutation, Replacement, RetiredShards, Retirement,
};
pub(crate) use mutation::{Reread, TABLE_WORK};
pub use operation::{OperationPhase, OperationRecord, OperationWay, StoredOperation};
pub use past_reconciliation::{Outcome, PastReconciliation};
pub use progress::{LaneId, Progress};
pub(crate) use refresh::refresh_command;
pub use refresh::{InvalidRefresh, KEYS_MAX, Refresh, Scope, TableRefresh};
pub use relation::RelationRow;
pub use row::{Cell, CellRef, Claimed, DerivedRow, DerivedTable, Stray, TableShape};
pub use seen_numbers::SeenNumbers;
pub use sequence::{
    CounterRow, DAYS_AFTER_MAX, DAYS_BEFORE_MAX, GivenOnce, NumberRange, RangeRefusal, RangeRequest,
    Remembered, RequestKey, SequenceServer, SequenceStatus,
};
pub use table_counts::TableCounts;
pub use withdrawals::PendingWithdrawals;
