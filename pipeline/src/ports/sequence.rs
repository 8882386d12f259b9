//! The counters of payment documents' identifiers, and the request keys beside them.

use std::future::Future;

use anabranch_schemas::flux::counter::Counter;

use crate::error::Fault;
use crate::records::{
    GivenOnce, NumberRange, RangeRefusal, RangeRequest, Remembered, RequestKey, SequenceServer,
    SequenceStatus,
};

/// Numbers that are allotted once, whatever happens to processes, clocks and the log.
pub trait Sequence: Send + Sync {
    /// Returns the server that keeps the counters. Another server has another name, also one with a copy of the tables.
    fn server(&self) -> impl Future<Output = Result<SequenceServer, Fault>> + Send;

    /// Allots numbers as [`NumberRange::of`] says. The range is durable when the call returns. After a fault numbers
    /// may be allotted too, and no process gets them.
    fn next_range(
        &self,
        request: &RangeRequest,
    ) -> impl Future<Output = Result<Result<NumberRange, RangeRefusal>, Fault>> + Send;

    /// Returns the identifiers that were given out with a key, if there are any.
    fn given(&self, key: &RequestKey) -> impl Future<Output = Result<Option<GivenOnce>, Fault>> + Send;

    /// Stores the identifiers that are given out with a key, unless the key has some already. Durable when it returns.
    /// The call may remove some keys that are old enough.
    fn remember(
        &self,
        key: &RequestKey,
        given: &GivenOnce,
    ) -> impl Future<Output = Result<Remembered, Fault>> + Send;

    /// Reads all counters of the region. Waits for no lock.
    fn status(&self) -> impl Future<Output = Result<SequenceStatus, Fault>> + Send;

    /// Raises each counter to its number. A higher counter stays, and so does a row that a later day has taken.
    fn raise(&self, numbers: &[(Counter, u32)]) -> impl Future<Output = Result<(), Fault>> + Send;
}
