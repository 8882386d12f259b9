//! The whole product on real servers: from a change in a sharded table to the derived tables, and all that an operator
//! sees on the way.

#![expect(clippy::unwrap_used, reason = "the whole target is tests")]

mod api;
mod authorities;
mod begin_anew;
mod between_reconciliations;
mod character_sets;
mod check;
mod commands;
mod coupon_calls;
mod coupon_faults;
mod coupon_frozen;
mod coupon_kills;
mod coupon_lag;
mod coupon_restored;
mod coupon_sources;
mod coupons;
mod dead_letters;
mod documents;
mod fail_over;
mod faults;
mod flow;
mod flux;
mod flux_flow;
mod flux_wide;
mod flux_wrong_rows;
mod flux_years;
mod foreign_rows;
mod grants;
mod growth;
mod health;
mod init;
mod large;
mod log_damage;
mod log_full;
mod lookup;
mod lookup_batches;
mod lunar;
mod mariadb_11;
mod metrics;
mod mysql;
mod nats_accounts;
mod older_daemon;
mod online_schema_change;
mod operations;
mod operator;
mod page;
mod page_in_browser;
mod page_parts;
mod page_sentence;
mod past;
mod pauses;
mod payments;
mod reconciliation_faults;
mod reconciliation_schema;
mod reconciliations;
mod refill;
mod refresh;
mod relations;
mod remove;
mod renames;
mod retention;
mod retired;
mod retired_killed;
mod rotation;
mod secrets;
mod serials;
mod series;
mod sessions;
mod sharing;
mod spill;
mod trace;
mod unread;
mod values;

use anabranch_stack::ServerSpec;
use anabranch_tests::Ground;

/// Two sources, the second with a compressed binlog, two targets (a plan takes the first one), and NATS.
static STANDARD: Ground = Ground::two_of(|| {
    vec![
        ServerSpec::mariadb_source("source-a"),
        ServerSpec::mariadb_source("source-b").flag("--log-bin-compress=ON"),
        ServerSpec::mariadb_target("target"),
        ServerSpec::mariadb_target("target-2"),
        ServerSpec::nats("nats"),
    ]
});
