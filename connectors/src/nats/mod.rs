//! NATS JetStream: the replayable log and the leases.
