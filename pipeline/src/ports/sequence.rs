//! The counters of payment documents' identifiers, and the request keys beside them.

use std::future::Future;

use anabranch_schemas::flux::counter::Counter;

use crate::error::Fault;
use crate::records::{
    GivenOnce, Lease, LeaseRefusal, LeaseRequest, Remembered, RequestKey, SequenceServer, SequenceStanding,
};

/// Numbers that are leased once, whatever happens to processes, clocks and the log.
pub trait Sequence: Send + Sync {
    /// The server that keeps the counters. Another server, also one with a copy of the tables, has another name.
    fn server(&self) -> impl Future<Output = Result<SequenceServer, Fault>> + Send;

    /// Leases numbers as [`Lease::of`] says. They are leased durably when it returns; after a fault they may be leased
    /// too, and nobody gets them.
    fn lease(
        &self,
        request: &LeaseRequest,
    ) -> impl Future<Output = Result<Result<Lease, LeaseRefusal>, Fault>> + Send;

    /// What was given out with a key.
    fn given(&self, key: &RequestKey) -> impl Future<Output = Result<Option<GivenOnce>, Fault>> + Send;

    /// Stores what is given out with a key, unless something stands with it. Durable when it returns. Some keys that
    /// are old enough may be removed with it.
    fn remember(
        &self,
        key: &RequestKey,
        given: &GivenOnce,
    ) -> impl Future<Output = Result<Remembered, Fault>> + Send;

    /// What the counters of the region say. Waits for no lock.
    fn standing(&self) -> impl Future<Output = Result<SequenceStanding, Fault>> + Send;

    /// Raises each counter to its number. A counter that stands higher stays, and so does a row that a later day has
    /// taken.
    fn raise(&self, numbers: &[(Counter, u32)]) -> impl Future<Output = Result<(), Fault>> + Send;
}
