//! One suite for each port, on real servers: it checks the promises of `pipeline/src/ports`.

#![expect(clippy::unwrap_used, reason = "the whole target is tests")]

#[macro_use]
mod ports;
mod redis_ground;

mod cache;
mod cache_drain;
mod cohort;
mod coupon_system;
mod decoder;
mod derived;
mod lease;
mod ledger;
mod log;
mod log_damage;
mod log_server;
mod lookup;
mod lookup_bounds;
mod nats;
mod plain;
mod rows;
mod search;
mod sequence;
mod source;
mod source_absence;
mod source_character_sets;
mod source_columns;
mod source_domains;
mod source_fail_over;
mod source_flow;
mod source_flux;
mod source_hostile;
mod source_locate;
mod source_mariadb_11;
mod source_mysql;
mod source_names;
mod source_outcome;
mod source_preflight;
mod source_rereads;
mod source_retired;
mod source_rows;
mod source_statements;
mod store;
mod store_history;
mod store_lanes;
mod store_mapping;
mod store_search;
mod store_search_find;
mod store_search_upkeep;
mod store_setup;
mod switch_over;
mod watched;
mod wire;
mod work_queue;
