//! The coupon day: each user whose birthday it is gets one coupon; no user gets two, and no user is missed.
//!
//! The package knows no MySQL, no NATS and no HTTP. [`records`] has the nouns, [`programme`] the configured rules,
//! [`ports`] the contracts with the outside. Decisions are pure functions in [`reserving`], [`issuing`],
//! [`dead_letters`], [`days`] and [`report`]; [`granting`], [`issuers`], [`dispatching`] and [`freezing`] carry them
//! out on the ports. [`resending`] publishes letters that a person sent again. [`rates`] shares the rate of a programme
//! among processes. [`columns`] compares the columns of birthday tables with the ledger.
//!
//! The ledger decides. Everything else (messages, columns of birthday tables, a process's memory) is a hint that may be
//! lost, doubled or old.

pub mod breaker;
pub mod columns;
pub mod days;
pub mod dead_letters;
pub mod dispatching;
pub mod freezing;
pub mod granting;
pub mod issuers;
pub mod issuing;
pub mod ports;
pub mod programme;
pub mod rates;
pub mod records;
pub mod report;
pub mod resending;
pub mod reserving;
pub mod restored;
pub mod turns;
