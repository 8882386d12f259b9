//! One folder for each outside system; each implements the ports of `anabranch_pipeline`.

pub mod mysql;
pub mod nats;
