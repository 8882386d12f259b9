//! The coupon day: everybody whose birthday it is gets one coupon; nobody gets two, and nobody is missed.
//!
//! Knows no MySQL, no NATS and no HTTP. [`records`] are the nouns, [`programme`] the rules as configured, [`ports`]
//! what the day needs of the outside. Decisions are pure functions in [`reserving`], [`issuing`], [`letters`], [`days`]
//! and [`report`]; [`granting`], [`issuers`], [`dispatching`] and [`freezing`] carry them out on the ports. [`columns`]
//! is what birthday tables say of coupons.
//!
//! The ledger decides. Whatever else there is (messages, columns of birthday tables, a process's memory) is a hint that
//! may be lost, doubled or old.

pub mod breaker;
pub mod columns;
pub mod days;
pub mod dispatching;
pub mod freezing;
pub mod granting;
pub mod issuers;
pub mod issuing;
pub mod letters;
pub mod ports;
pub mod programme;
pub mod records;
pub mod report;
pub mod reserving;
pub mod restored;
