//! The part of the binlog that a snapshot of a table shows.

/// Relation of a snapshot to the binlog.
#[derive(Debug, Clone, Copy)]
pub struct SnapshotView {
    /// Newest groups in the binlog that the snapshot does not show yet, as while their commits wait for a replica's
    /// acknowledgement.
    pub unseen: usize,
    /// The server does not report the snapshot's position: the low watermark is so many groups below it, the high one
    /// at the end.
    pub below: Option<usize>,
}
