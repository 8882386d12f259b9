//! Identifiers of payment documents: each is given out once, whatever happens to processes, clocks, servers and the
//! log.
//!
//! Proof. A number is given out only from a range that one UPDATE of its counter's row leased, durably, before. The row
//! only rises within a day, and a day never comes back to it: its date only rises, too. So a number can be leased twice
//! only where the row itself went back, since somebody restored the server, or points at another server. Against that
//! stand two registers of the log. One names the server. One a ring knows how far its counters were leased: a range is
//! used only if that register did not move between its reading, before the UPDATE, and its raising, after it, and if
//! the UPDATE began above it. So everything that was ever given out lies below the register, and a counter below it is
//! told by name. A log that lost its registers weakens this check and nothing else.
//!
//! `wanted.rs` says what a caller may choose, `issuer.rs` holds the ranges of a process, `known.rs` is the registers,
//! `upkeep.rs` looks after the counters and raises them.

mod issuer;
mod known;
mod upkeep;
mod wanted;

pub use self::issuer::{FluxIssuer, FluxSettings};
pub use self::known::{Known, seen};
pub use self::upkeep::{Raised, SequenceState, raise, state};
pub use self::wanted::{FluxOrder, VERSION};
