//! `cargo bench`: how fast the product is, as ratios to limits that are measured in the same run.
//!
//! It starts its own servers, prints one table and writes the figures as JSON. Absolute figures belong to the machine;
//! ratios and CPU per row can be compared. `README.md` beside this file says how each figure is measured.

mod apply;
mod arrivals;
mod audited;
mod begin_anew;
mod beside;
mod by_hand;
mod cache;
mod capture;
mod contest;
mod coupon_days;
mod coupon_town;
mod coupons;
mod data;
mod devices;
mod documents;
mod dropped;
mod findable;
mod http;
mod identifiers;
mod initial_load;
mod issued;
mod latency;
mod load;
mod lookup;
mod memory;
mod meter;
mod observed;
mod online_schema_change;
mod page;
mod payments;
mod recharges;
mod reconcile;
mod reconciliations;
mod report;
mod retired;
mod scan;
mod scrape;
mod single_calls;
mod site;
mod table_ids;
mod unchanged;
mod users;
mod waiting_rereads;

use anabranch_demo::verify::DerivedLayout;
use anabranch_schemas::change::Entity;
use anabranch_stack::{Options, ServerSpec};
use anabranch_tests::Ground;
use clap::{Parser, ValueEnum};

use crate::devices::Devices;
use crate::recharges::Recharges;
use crate::report::Report;
use crate::site::Site;
use crate::users::Users;

/// Measures Anabranch against limits of the same machine, and prints one table.
#[derive(Debug, Parser)]
#[command(name = "cargo bench --", max_term_width = 100)]
struct Arguments {
    /// Figures to measure; without any, all
    #[arg(value_enum)]
    figures: Vec<Figure>,
    /// A tenth of the rows and a shorter latency run: for development, not for comparison
    #[arg(long)]
    quick: bool,
    /// Rounds of each comparison; the first scan of all is measured beside them and thrown away
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Minutes for which the live page is open while memory is measured, and as many without it
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=600))]
    minutes: u64,
    /// Rows of the table that online schema tools alter
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    altered_rows: u64,
    /// Random numbers of the data and of the workload begin with it
    #[arg(long, default_value_t = 4)]
    seed: u64,
    /// Be a bare server for comparison with lookups, on this port
    #[arg(long, hide = true)]
    bare: Option<u16>,
    /// Given by cargo to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Figure {
    /// Binlog to decoded changes, without and with TLS, and with 1,000 tables, against a header-only scan
    Decode,
    /// Updates that change nothing captured, against updates of tables that are not captured
    Unchanged,
    /// Binlog to acknowledged messages in JetStream, against the same scan
    Append,
    /// Log to 366 tables, catching up, against a program written by hand for it
    Apply,
    /// Commit to visible in the derived table at 1,000 changes a second
    Latency,
    /// CPU of the daemon a change, and latency, with a scraper and 20 open pages, against none
    Observed,
    /// The live page in a browser: first paint, bytes, console, time until it names a killed server, memory
    Page,
    /// Scrape of a daemon with 600 lanes, and the series that captured tables add
    Scrape,
    /// Log to 3 × 512 mapping tables, catching up, against a program written by hand for it
    Mapping,
    /// Outbox of 3 × 512 mapping tables to Redis, against a program written by hand for it
    Cache,
    /// Log to OpenSearch documents, catching up, against a bulk loader written by hand
    Documents,
    /// Exact lookup over HTTP, in Redis and not, against a bare echo server
    Lookup,
    /// Commit to findable by exact lookup over HTTP at 1,000 changes a second
    Findable,
    /// Both sides of a reconciliation's unit, read and compared, against the two streams of rows alone
    Reconcile,
    /// CPU a row of units of half a million to four million users
    Slope,
    /// Memory of whole reconciliations with 0, 1 and 100 % drift
    Reconciliations,
    /// A full source without its binlogs into 366 tables, against bulk loads written by hand
    Load,
    /// A source that begins anew, against a load of the same rows into empty tables
    BeginAnew,
    /// Lag of live changes beside a load, a reconciliation and the spot checks between reconciliations, against the
    /// lag without
    Beside,
    /// Lag of live changes beside DROP DATABASE of 5,000 tables by the rule, against the lag without, and memory
    Dropped,
    /// Lag of live changes beside pt-online-schema-change of another table, and beside gh-ost's statements, against the
    /// lag without
    OnlineSchemaChange,
    /// Most memory of the daemon: catching up, and with one very large transaction
    Memory,
    /// Most memory of the daemon, and the largest progress row, while 1,000 tables wait to be read again
    WaitingRereads,
    /// The cohort of a coupon day frozen, against INSERT … SELECT of the same rows
    Freeze,
    /// Coupons granted, 100 in a message and one in a message, against a program written by hand for it
    Grants,
    /// Coupons granted by a request over HTTP for each user, against a program written by hand that does the same
    GrantsSingle,
    /// Whole coupon days in both layouts: the same one beside 2 and 20 million users, and 1 January of 2 million
    Days,
    /// Lag of live changes beside a coupon day, against the lag without
    DayLag,
    /// Identifiers of payment documents read and checked on one core, against a sum of their bytes
    Identifiers,
    /// Identifiers of payment documents from a leased range, one at a time on one core, beside hundreds
    IdentifiersLeased,
    /// Identifiers of payment documents over HTTP in hundreds, against uuids in hundreds
    IdentifiersHttp,
    /// Log to the 100 tables of the relation index, catching up, against a program written by hand for it
    RelationsApply,
    /// All 20 documents below a recharge over HTTP, against the same queries on a connection to the target
    RelationsHttp,
    /// Changes of payment documents projected with the audit of their places, against the projection without it
    FluxAudit,
    /// Log to the relation index with the audit of places, against the same without it
    FluxCapture,
    /// The lanes' own part of the lag beside months' tables that retire, against the part beside other dropped tables
    Retired,
    /// Most memory of the daemon beside tables that get a new number with each transaction
    TableIds,
}

/// The figures that were asked for; none means all.
struct Selection(Vec<Figure>);

impl Selection {
    fn has(&self, figure: Figure) -> bool {
        self.0.is_empty() || self.0.contains(&figure)
    }
}

/// Lanes of catching up, one for each connection of the hand-written program.
const APPLY_LANES: u32 = 4;
/// Lanes of the other figures, the default of the configuration.
const LATENCY_LANES: u32 = 2;

/// Amounts and times of the measurements.
#[derive(Debug, Clone, Copy)]
struct Scale {
    rows: u64,
    device_changes: u64,
    cached_devices: u64,
    documents: u64,
    lookup_seconds: u64,
    users: u64,
    devices: u64,
    large_transaction_rows: u64,
    table_ids: u64,
    altered_rows: u64,
    coupon_users: u64,
    grants: u64,
    day_users: u64,
    flux_changes: u64,
    recharges: u64,
    audited: u64,
    issued: u64,
    latency_seconds: u64,
    page_minutes: u64,
    rounds: u32,
    seed: u64,
}

impl Scale {
    fn of(arguments: &Arguments) -> Self {
        let divisor = if arguments.quick { 10 } else { 1 };
        Self {
            rows: 2_000_000 / divisor,
            device_changes: 500_000 / divisor,
            cached_devices: 150_000 / divisor,
            documents: 100_000 / divisor,
            lookup_seconds: if arguments.quick { 2 } else { 8 },
            users: 2_000_000 / divisor,
            devices: 1_000_000 / divisor,
            large_transaction_rows: 1_000_000 / divisor,
            table_ids: 1_000_000 / divisor,
            altered_rows: arguments.altered_rows / divisor,
            coupon_users: 1_000_000 / divisor,
            grants: 100_000 / divisor,
            day_users: 20_000_000 / divisor,
            flux_changes: 500_000 / divisor,
            recharges: 5_000 / divisor,
            audited: 100_000 / divisor,
            issued: 10_000_000 / divisor,
            latency_seconds: if arguments.quick { 5 } else { 20 },
            page_minutes: arguments.minutes,
            rounds: arguments.rounds,
            seed: arguments.seed,
        }
    }
}

static GROUND: Ground = Ground::on_disk(|| {
    Options::empty()
        .with(ServerSpec::mariadb_source("source"))
        .with(ServerSpec::mariadb_target("target"))
        .with(ServerSpec::nats("nats"))
        .servers
});

#[tokio::main]
async fn main() {
    let arguments = Arguments::parse();
    if let Some(port) = arguments.bare {
        return lookup::bare(port).await;
    }
    let wanted = Selection(arguments.figures.clone());
    let scale = Scale::of(&arguments);
    let mut report = Report::new(&scale);
    changes_of_users(&wanted, &scale, &mut report).await;
    if wanted.has(Figure::Decode) {
        let site = Site::of_many_tables(GROUND.turn().await, APPLY_LANES).await;
        let amount = (scale.rows, scale.seed);
        let data = data::write(&site, Users::OF_MANY, amount, Users::writers_of_many()).await;
        report.note(&data.to_string());
        capture::measure_many_tables(&site, &data, &scale, &mut report).await;
    }
    if wanted.has(Figure::Unchanged) {
        let site = Site::of_users(GROUND.turn().await, APPLY_LANES).await;
        unchanged::measure(&site, &scale, &mut report).await;
    }
    reconciled(&wanted, &scale, &mut report).await;
    payment_documents(&wanted, &scale, &mut report).await;
    if wanted.has(Figure::Load) {
        let mut site = Site::of_users(GROUND.turn().await, APPLY_LANES).await;
        initial_load::measure(&mut site, &scale, &mut report).await;
    }
    if wanted.has(Figure::Beside) {
        beside::measure(Site::of_users(GROUND.turn().await, LATENCY_LANES).await, &scale, &mut report).await;
    }
    if wanted.has(Figure::Dropped) {
        dropped::measure(Site::of_users(GROUND.turn().await, LATENCY_LANES).await, &scale, &mut report).await;
    }
    if wanted.has(Figure::TableIds) {
        let mut site = Site::of_users(GROUND.turn().await, LATENCY_LANES).await;
        table_ids::measure(&mut site, &scale, &mut report).await;
    }
    live_changes(&wanted, &scale, &mut report).await;
    if wanted.has(Figure::Mapping) {
        let mut site = Site::of_devices(GROUND.turn().await, APPLY_LANES).await;
        let amount = (scale.device_changes, scale.seed);
        let data = data::write(&site, Devices::WHAT, amount, Devices::writers()).await;
        report.note(&data.to_string());
        apply::measure(&mut site, &data, Figure::Mapping, &scale, &mut report).await;
    }
    cached_devices(&wanted, &scale, &mut report).await;
    if wanted.has(Figure::Documents) {
        let mut site = Site::of_documents(GROUND.turn().await, LATENCY_LANES).await;
        documents::measure(&mut site, &scale, &mut report).await;
    }
    report.print();
}

/// Figures of the same written changes of users.
async fn changes_of_users(wanted: &Selection, scale: &Scale, report: &mut Report) {
    if wanted.has(Figure::Decode)
        || wanted.has(Figure::Append)
        || wanted.has(Figure::Apply)
        || wanted.has(Figure::Memory)
    {
        let mut site = Site::of_users(GROUND.turn().await, APPLY_LANES).await;
        let data = data::write(&site, Users::WHAT, (scale.rows, scale.seed), Users::writers()).await;
        report.note(&data.to_string());
        if wanted.has(Figure::Decode) || wanted.has(Figure::Append) {
            capture::measure(&mut site, &data, scale, wanted, report).await;
        }
        if wanted.has(Figure::Apply) {
            apply::measure(&mut site, &data, Figure::Apply, scale, report).await;
        }
        if wanted.has(Figure::Memory) {
            memory::measure(&mut site, &data, scale, report).await;
        }
    }
}

/// Figures of devices whose codes are cached.
async fn cached_devices(wanted: &Selection, scale: &Scale, report: &mut Report) {
    let served = [Figure::Lookup, Figure::Findable].into_iter().any(|figure| wanted.has(figure));
    if wanted.has(Figure::Cache) || served {
        let mut site = Site::of_cached_devices(GROUND.turn().await, LATENCY_LANES).await;
        cache::fill_tables(&mut site, scale, report).await;
        if wanted.has(Figure::Cache) {
            cache::measure(&site, scale, report).await;
        }
        if served {
            let daemon = site.installation.run();
            daemon.until_ready().await;
            site.installation.drained().await;
            if wanted.has(Figure::Lookup) {
                lookup::measure(&site, &daemon, scale, report).await;
            }
            if wanted.has(Figure::Findable) {
                findable::measure(&site, &daemon, scale, report).await;
            }
        }
    }
}

/// Measures the latency of live changes, also beside a schema change, what it costs to read tables again, and what it
/// costs to watch the daemon.
async fn live_changes(wanted: &Selection, scale: &Scale, report: &mut Report) {
    if wanted.has(Figure::Latency) {
        latency::measure(Site::of_users(GROUND.turn().await, LATENCY_LANES).await, scale, report).await;
    }
    if wanted.has(Figure::Observed) {
        observed::measure(Site::of_users(GROUND.turn().await, LATENCY_LANES).await, scale, report).await;
    }
    if wanted.has(Figure::OnlineSchemaChange) {
        let site = Site::of_altered_users(GROUND.turn().await, LATENCY_LANES).await;
        online_schema_change::measure(site, scale, report).await;
    }
    if wanted.has(Figure::BeginAnew) {
        let mut site = Site::of_users(GROUND.turn().await, APPLY_LANES).await;
        begin_anew::measure(&mut site, scale, report).await;
    }
    if wanted.has(Figure::WaitingRereads) {
        let site = Site::of_many_tables(GROUND.turn().await, LATENCY_LANES).await;
        waiting_rereads::measure(site, report).await;
    }
    if wanted.has(Figure::Page) {
        page::measure(Site::of_users(GROUND.turn().await, LATENCY_LANES).await, scale, report).await;
    }
    if wanted.has(Figure::Scrape) {
        scrape::measure(GROUND.turn().await, report).await;
        let site = Site::of_many_tables(GROUND.turn().await, LATENCY_LANES).await;
        scrape::measure_tables(site, report).await;
    }
}

/// Measures every figure of reconciliations and of coupon days.
async fn reconciled(wanted: &Selection, scale: &Scale, report: &mut Report) {
    for entity in [Entity::User, Entity::SerialCode] {
        if wanted.has(Figure::Reconcile) {
            let mut site = Site::of(entity, GROUND.turn().await, APPLY_LANES).await;
            reconcile::measure(&mut site, scale, report).await;
        }
        if wanted.has(Figure::Reconciliations) {
            let mut site = Site::of(entity, GROUND.turn().await, LATENCY_LANES).await;
            reconciliations::memory(&mut site, scale, report).await;
        }
    }
    if wanted.has(Figure::Slope) {
        let mut site = Site::of_users(GROUND.turn().await, APPLY_LANES).await;
        reconciliations::slope(&mut site, scale, report).await;
    }
    let granted = [Figure::Freeze, Figure::Grants, Figure::GrantsSingle];
    if granted.into_iter().any(|figure| wanted.has(figure)) {
        let site = Site::of_users(GROUND.turn().await, LATENCY_LANES).await;
        coupons::measure(&site, scale, wanted, report).await;
    }
    if wanted.has(Figure::Days) {
        for layout in [DerivedLayout::ByDay, DerivedLayout::ByUser] {
            coupon_days::measure(GROUND.turn().await, layout, scale, report).await;
        }
    }
    if wanted.has(Figure::DayLag) {
        coupon_days::lag(GROUND.turn().await, scale, report).await;
    }
}

/// Measures every figure of payment documents.
async fn payment_documents(wanted: &Selection, scale: &Scale, report: &mut Report) {
    if wanted.has(Figure::Identifiers) {
        identifiers::measure(scale, report);
    }
    if wanted.has(Figure::IdentifiersLeased) {
        identifiers::measure_leased(scale, report).await;
    }
    if wanted.has(Figure::IdentifiersHttp) {
        issued::measure(Site::of_payments(GROUND.turn().await, LATENCY_LANES).await, scale, report).await;
    }
    if wanted.has(Figure::FluxAudit) {
        payments::measure_audit(scale, report);
    }
    if wanted.has(Figure::FluxCapture) {
        let mut site = Site::of_payments(GROUND.turn().await, LATENCY_LANES).await;
        let amount = (scale.flux_changes, scale.seed);
        let data = data::write(&site, Recharges::WHAT, amount, Recharges::writers()).await;
        report.note(&data.to_string());
        audited::measure(&mut site, &data, scale, report).await;
    }
    if wanted.has(Figure::RelationsApply) {
        let mut site = Site::of_payments(GROUND.turn().await, APPLY_LANES).await;
        let amount = (scale.flux_changes, scale.seed);
        let data = data::write(&site, Recharges::WHAT, amount, Recharges::writers()).await;
        report.note(&data.to_string());
        apply::measure(&mut site, &data, Figure::RelationsApply, scale, report).await;
    }
    if wanted.has(Figure::RelationsHttp) {
        let site = Site::of_payments(GROUND.turn().await, LATENCY_LANES).await;
        payments::measure_http(&site, scale, report).await;
    }
    if wanted.has(Figure::Retired) {
        let site = Site::of_payments(GROUND.turn().await, LATENCY_LANES).await;
        retired::measure(site, scale, report).await;
    }
}
