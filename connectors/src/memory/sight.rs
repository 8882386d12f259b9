//! What a snapshot shows of the binlog: a table is read as it is in one.

/// How a snapshot stands to the binlog.
#[derive(Debug, Clone, Copy)]
pub struct Sight {
    /// How many of the newest groups are in the binlog and not seen yet, as while a replica's acknowledgement is waited
    /// for.
    pub unseen: usize,
    /// The server does not say where the snapshot stands: the low watermark lies so many groups below, the high one
    /// at the end.
    pub below: Option<usize>,
}
