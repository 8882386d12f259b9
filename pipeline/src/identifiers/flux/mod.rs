//! Identifiers of payment documents: each is given out once, whatever happens to processes, clocks, servers and the
//! log.
//!
//! Proof. A number is given out only from a range that one UPDATE of its counter's row leased before, durably. The row
//! only rises within a day, and no day comes back to it, since its date only rises, too. So a number can be leased
//! twice only if a person restored the server from a copy, or if the row belongs to another server. Two registers of
//! the log cover that:
//! - One names the server.
//! - One for each ring holds how far its counters were leased. A range counts only if this register did not move
//!   between its read, before the UPDATE, and its raise, after it, and if the UPDATE began above it.
//!
//! So every number that was ever given out is below the register, and a counter below it is reported by name. A log
//! that lost its registers weakens this check and nothing else: readers raise the new registers to the numbers of the
//! rows that they capture.
//!
//! `wanted.rs` checks the choices of a caller, `issuer.rs` holds the ranges of a process, `known.rs` the registers, and
//! `seen.rs` the numbers of captured rows; `upkeep.rs` checks the counters and raises them, and `used.rs` shows how
//! full they are.

mod issuer;
mod known;
mod seen;
mod upkeep;
mod used;
mod wanted;

pub use self::issuer::{DURABLE_SETTINGS, FluxIssuer, FluxSettings, SET_DURABLE};
pub use self::known::UsedBounds;
pub use self::seen::CapturedNumbers;
pub use self::upkeep::{RaiseOutcome, SequenceState, raise, state};
pub use self::wanted::{FluxOrder, VERSION};
