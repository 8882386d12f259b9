//! One run of the demo from the first server to the last signal.
//!
//! The run ends in this order: workload and probes stop, both sides are drained and compared, the daemon ends in order,
//! then the servers. A signal skips the comparison; servers and daemon end the same way. If this process is killed, the
//! stack ends them.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::time::Duration;

use anabranch_demo::daemon::{self, Commands, Daemon, DaemonConfiguration};
use anabranch_demo::drift::{Judgement, Planter, Reconciliation};
use anabranch_demo::verify::{BirthdayLayer, Layer, Verification, drain, drain_and_compare, topologies};
use anabranch_demo::{
    CouponDay, CouponReport, DemoError, LagProbe, Pace, Result, SetAside, Workload, WorkloadOptions,
    WorkloadReport,
};
use anabranch_schemas::change::Entity;
use anabranch_stack::{ReservedPort, Stack};
use futures::future::join_all;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::arguments::Arguments;
use super::live::{Watched, show};
use super::plan::{NAME, audits, servers};
use super::screen::{Screen, say};
use super::summary::{Compared, Measured, Summary};

/// Lag probes a second for each entity, over all sources.
const PROBES_PER_SECOND: u32 = 50;
/// Limit from the daemon's start to the first derived row, on a busy machine too.
const FIRST_ROW_MAX: Duration = Duration::from_secs(60);
/// Limit of deriving everything that the binlogs hold when the workload ends.
const DRAIN_MAX: Duration = Duration::from_secs(120);

/// Documents of a recharge and everything that belongs to it, about; `--flux` counts recharges.
const DOCUMENTS_PER_RECHARGE: u64 = 7;

/// Token that applications send to the API.
const TOKEN: &str = "token-of-the-demo";
/// Token with which the live page shows its actions.
const OPERATOR_TOKEN: &str = "operator-of-the-demo";
/// Time before drift is planted, so that all parts are running.
const BEFORE_DRIFT: Duration = Duration::from_secs(3);
/// Roles of the daemon when a command begins the coupon day: all but the dispatcher's.
const ROLES_WITH_COUPONS: [&str; 5] = ["reader", "projector", "reconciler", "granter", "api"];
const DAEMON_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The end of a run.
#[derive(Debug)]
pub enum SessionEnd {
    Interrupted,
    Finished(Box<Summary>),
}

/// All running parts, in the order of their end.
struct Running {
    daemon: Daemon,
    /// Lag probes, one for each entity.
    probes: Vec<LagProbe>,
    /// Workloads, one for each entity.
    workloads: Vec<Workload>,
    audits: Vec<Verification>,
    coupons: Option<CouponDay>,
    configuration_file: PathBuf,
    measured: Measured,
    stack: Stack,
}

pub async fn run(arguments: &Arguments, stop: &CancellationToken) -> Result<SessionEnd> {
    let started = Instant::now();
    let running = start(arguments, started, stop).await;
    // A failure that the signal has caused is no failure.
    let Some(mut running) = (match running {
        Err(_) if stop.is_cancelled() => None,
        running => running?,
    }) else {
        return Ok(SessionEnd::Interrupted);
    };
    let result = measure(arguments, &mut running, stop).await;
    let compared = match result {
        Ok(()) if stop.is_cancelled() && arguments.verify => Ok(None),
        Ok(()) if arguments.verify => {
            say("draining, and comparing every row, key and document with the sources ...");
            let compared = drain_and_compare(&running.audits, DRAIN_MAX).await;
            compared.map(|(drained, comparisons)| {
                let layers = running.audits.iter().cloned().zip(comparisons).collect();
                Some(Compared { drained, layers })
            })
        }
        Ok(()) => Ok(None),
        Err(error) => Err(error),
    };
    let granted = match &running.coupons {
        Some(day) if compared.is_ok() && !stop.is_cancelled() => coupon_day(day, &running).await.map(Some),
        _ => Ok(None),
    };
    running.measured.daemon_resident_bytes = running.daemon.resident_bytes_max();
    let mut measured = std::mem::take(&mut running.measured);
    match granted {
        Ok(report) => measured.coupons = report,
        Err(error) => measured.problems.push(error.to_string()),
    }
    match end(running).await {
        Ok(None) => {}
        Ok(Some(problem)) => measured.problems.push(problem),
        Err(error) => measured.problems.push(error.to_string()),
    }
    let compared = compared?;
    if stop.is_cancelled() && arguments.verify && compared.is_none() {
        return Ok(SessionEnd::Interrupted);
    }
    Ok(SessionEnd::Finished(Box::new(Summary::new(arguments, measured, compared))))
}

/// Starts everything and makes the first users; returns `None` when a signal came first.
async fn start(arguments: &Arguments, started: Instant, stop: &CancellationToken) -> Result<Option<Running>> {
    let page = ReservedPort::announced()?;
    say(&format!("the live page is at http://127.0.0.1:{}/ as soon as the daemon runs", page.number()));
    let options = servers(arguments);
    let names: Vec<&str> = options.servers.iter().map(|server| server.name.as_str()).collect();
    say(&format!("starting {} and building the daemon ...", names.join(", ")));
    let stack = tokio::task::spawn_blocking(|| Stack::start(options));
    let binary = tokio::task::spawn_blocking(daemon::build);
    let (stack, binary) = tokio::join!(stack, binary);
    let (stack, binary) = (stack??, binary??);
    let mut measured =
        Measured { stack_ready_seconds: started.elapsed().as_secs_f64(), ..Measured::default() };
    if stop.is_cancelled() {
        return Ok(None);
    }
    let audits = audits(arguments, &stack)?;
    let mut configuration = DaemonConfiguration::standard(audits.clone());
    configuration.name = NAME.to_owned();
    configuration.lanes = arguments.lanes;
    configuration.http_port = page.number();
    configuration.tokens = vec![TOKEN.to_owned()];
    let coupons = match arguments.coupons {
        true => Some(CouponDay::begin(&stack, arguments.lunar).await?),
        false => None,
    };
    configuration.further = coupons.as_ref().map(CouponDay::configuration).unwrap_or_default();
    configuration.further +=
        &format!("\n[[http.operators]]\nname = \"{NAME}\"\ntoken = \"{OPERATOR_TOKEN}\"\n");
    let configuration_file = configuration.write(&stack)?;
    let seed = arguments.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
    measured.seed = seed;
    // Users may kill and restart servers while it runs: `cargo stack --instance NAME kill source-a`.
    let options = WorkloadOptions::new(seed).tolerating_crashes();
    let mut workloads: Vec<Workload> =
        topologies(&audits).into_iter().map(|topology| Workload::new(topology.clone(), options)).collect();
    for workload in &workloads {
        workload.create_schema().await?;
    }
    let ready = measured.stack_ready_seconds;
    say(&format!("ready after {ready:.1} s; setting up streams, derived tables and indexes ..."));
    let (program, file) = (binary.clone(), configuration_file.clone());
    tokio::task::spawn_blocking(move || Daemon::set_up(&program, &file)).await??;
    let mut probes = Vec::new();
    for topology in topologies(&audits) {
        let is_own = |audit: &&Verification| audit.topology.entity == topology.entity;
        probes.push(LagProbe::create(&audits.iter().filter(is_own).collect::<Vec<_>>()).await?);
    }
    let roles: &[&str] = if arguments.coupons { &ROLES_WITH_COUPONS } else { &[] };
    page.release();
    let daemon = Daemon::start(&stack, &binary, &configuration_file, (configuration.http_port, roles))?;
    let first_row = tokio::select! {
        () = stop.cancelled() => return Ok(None),
        seen = probes[0].first_row(FIRST_ROW_MAX) => seen,
    };
    if !first_row {
        let status = "nothing in the derived tables, while it ran".to_owned();
        let log = daemon.log_tail();
        return Err(DemoError::Program { program: "the wait for the first row".to_owned(), status, log });
    }
    measured.first_row_seconds = started.elapsed().as_secs_f64();
    let rows = if arguments.flux == 0 { "users and devices" } else { "users, devices and payment documents" };
    say(&format!("first row after {:.1} s; making {rows} ...", measured.first_row_seconds));
    for workload in &mut workloads {
        let entity = workload.topology().entity;
        let mut total = workload.insert_rows(first_rows(arguments, entity)).await?;
        total.merge(&workload.giant_transactions().await?);
        measured.totals.push((entity, total));
    }
    Ok(Some(Running { daemon, probes, workloads, audits, coupons, configuration_file, measured, stack }))
}

/// Returns the number of an entity's rows to begin with.
fn first_rows(arguments: &Arguments, entity: Entity) -> u64 {
    match entity {
        Entity::User => arguments.users,
        Entity::SerialCode => arguments.devices,
        Entity::Flux => arguments.flux * DOCUMENTS_PER_RECHARGE,
    }
}

/// Runs the coupon day once the stores hold everything that the sources hold.
async fn coupon_day(day: &CouponDay, running: &Running) -> Result<CouponReport> {
    say("the workload has ended; a day of birthday coupons ...");
    drain(&running.audits, DRAIN_MAX).await?;
    let layers = running.audits.iter().filter_map(|audit| match &audit.layer {
        Layer::Birthday(layer) => Some(layer),
        _ => None,
    });
    let layers: Vec<&BirthdayLayer> = layers.collect();
    // The audits of users are the first ones.
    day.run(&running.daemon.commands(), &running.audits[0].topology, &layers).await
}

/// Runs the workload with a pace, during which lag is measured, between two drained states.
async fn measure(arguments: &Arguments, running: &mut Running, stop: &CancellationToken) -> Result<()> {
    tokio::select! {
        () = stop.cancelled() => return Ok(()),
        drained = drain(&running.audits, DRAIN_MAX) => drop(drained?),
    }
    let aside = set_aside(arguments, &mut running.workloads);
    let cancel = stop.child_token();
    let mut screen = screen(arguments, running);
    screen.open();
    let watched = Watched {
        audits: &running.audits,
        http: running.daemon.http(),
        changes: running.workloads.iter().map(Workload::live).collect(),
        lags: running.probes.iter().flat_map(LagProbe::live).collect(),
    };
    let (commands, seed) = (running.daemon.commands(), running.measured.seed);
    let reconciliation_is_over = stop.child_token();
    let start = Instant::now();
    let timer = async {
        match arguments.time() {
            // The workload lasts at least as long as the reconciliation.
            Some(time) => _ = tokio::join!(tokio::time::sleep(time), reconciliation_is_over.cancelled()),
            None => cancel.cancelled().await,
        }
        cancel.cancel();
    };
    let work = async {
        let workloads = running.workloads.len() as u32;
        let works = running.workloads.iter_mut().map(|workload| {
            let (cancel, pace) = (cancel.clone(), Pace::of(arguments.rate().div_ceil(workloads)));
            async move {
                let report = workload.run(pace, cancel.clone()).await;
                // A failed workload ends the run too: no part continues alone.
                cancel.cancel();
                report
            }
        });
        (join_all(works).await, start.elapsed())
    };
    let probes = join_all(running.probes.iter().map(|probe| probe.run(PROBES_PER_SECOND, cancel.clone())));
    let stalled = async {
        match arguments.stall() {
            None => Ok(Vec::new()),
            Some(stall) => {
                stall.run(&running.stack, &watched.lags, &cancel).await.inspect_err(|_| cancel.cancel())
            }
        }
    };
    let planted = async {
        let judgement = match arguments.drift {
            0 => None,
            keys => Some(reconciliation(&running.audits, &commands, (keys, &aside, seed), &cancel).await),
        };
        if judgement.as_ref().is_some_and(Result::is_err) {
            cancel.cancel();
        }
        reconciliation_is_over.cancel();
        judgement.transpose()
    };
    let kept = keep_daemon(&mut running.daemon, &running.stack, &cancel);
    let shown = show(&watched, &mut screen, &cancel);
    let (worked, lags, kept, stalled, planted, (), ()) =
        tokio::join!(work, probes, kept, stalled, planted, shown, timer);
    let (reports, time) = worked;
    running.measured.daemon_restarts = kept?;
    running.measured.paced_seconds = time.as_secs_f64();
    running.measured.lags = lags.concat();
    running.measured.stall = stalled?;
    running.measured.drift = planted?;
    let reports = reports.into_iter().collect::<Result<Vec<WorkloadReport>>>()?;
    sum_up(&mut running.measured, &mut running.workloads, &reports, stop).await
}

/// Sets rows aside in which drift is planted later.
fn set_aside(arguments: &Arguments, workloads: &mut [Workload]) -> Vec<SetAside> {
    match arguments.drift {
        0 => Vec::new(),
        keys => {
            let rows = Planter::rows_needed(keys);
            workloads.iter_mut().flat_map(|workload| workload.set_aside(rows)).collect()
        }
    }
}

/// Adds the reports of the workloads to the totals, and the last large transactions.
async fn sum_up(
    measured: &mut Measured,
    workloads: &mut [Workload],
    reports: &[WorkloadReport],
    stop: &CancellationToken,
) -> Result<()> {
    measured.paced_changes = reports.iter().map(|report| report.changes).sum();
    for ((_, total), report) in measured.totals.iter_mut().zip(reports) {
        total.merge(report);
    }
    if !stop.is_cancelled() {
        // Each source changes 10,000 rows in one transaction again, now that it has as many.
        for ((_, total), workload) in measured.totals.iter_mut().zip(workloads) {
            total.merge(&workload.giant_transactions().await?);
        }
    }
    Ok(())
}

/// Plants drift and reconciles once the workload is running.
async fn reconciliation(
    audits: &[Verification],
    commands: &Commands,
    (keys, aside, seed): (u64, &[SetAside], u64),
    cancel: &CancellationToken,
) -> Result<Judgement> {
    let reconciliation = async {
        tokio::time::sleep(BEFORE_DRIFT).await;
        let planted = Planter::new(audits, seed).plant(keys, aside).await?;
        say(&format!("{} keys of derived stores were changed by hand; reconciling ...", planted.total()));
        Ok(Reconciliation::run(commands).await?.judge(audits, planted))
    };
    tokio::select! {
        () = cancel.cancelled() => Ok(Judgement::default()),
        judgement = reconciliation => judgement,
    }
}

/// Restarts a killed daemon, as a supervisor would, until cancelled; returns how often. A daemon that ends by itself
/// ends the run: the later phases report its end.
async fn keep_daemon(daemon: &mut Daemon, stack: &Stack, cancel: &CancellationToken) -> Result<u64> {
    let mut restarts = 0;
    loop {
        tokio::select! {
            () = cancel.cancelled() => return Ok(restarts),
            () = tokio::time::sleep(DAEMON_CHECK_INTERVAL) => {}
        }
        if daemon.is_running() {
            daemon.resident_bytes_max();
            continue;
        }
        if daemon.ended().is_none_or(|status| status.signal().is_none()) {
            cancel.cancel();
            return Ok(restarts);
        }
        restarts += 1;
        daemon.start_again(stack)?;
    }
}

fn screen(arguments: &Arguments, running: &Running) -> Screen {
    let stack = running.stack.name();
    let file = running.configuration_file.display();
    let rule = running.audits[0].topology.rule;
    let heading = format!(
        "Anabranch demo: users by {} {}, birthdays {} in {} databases, {}{}seed {}",
        daemon::spread_name(rule.spread),
        daemon::hash_name(rule.hash),
        arguments.layout_name(),
        arguments.databases,
        match (arguments.devices, arguments.without_search) {
            (0, _) => String::new(),
            (_, true) => format!("serial codes in 3 × {} tables and Redis, ", arguments.mapping_tables),
            (_, false) => {
                format!("serial codes in 3 × {} tables, Redis and OpenSearch, ", arguments.mapping_tables)
            }
        },
        match arguments.flux {
            0 => String::new(),
            _ => format!("payment documents of {} user partitions, ", arguments.flux_partitions * 10),
        },
        running.measured.seed
    );
    let mut footer = vec![
        format!("live page    http://{}/   (token {OPERATOR_TOKEN}: its actions)", running.daemon.http()),
        format!("metrics      http://{}/metrics  (also /v1/status, /readyz)", running.daemon.http()),
        format!("status       cargo anabranch --config {file} status --watch"),
        format!("the log      cargo anabranch --config {file} tail"),
        format!("break it     cargo stack --instance {stack} kill source-a   (then: restart source-a)"),
        format!("             kill -9 {}   (the daemon: it is started again)", running.daemon.pid()),
        format!("servers      cargo stack --instance {stack} env"),
        format!("daemon log   {}", running.daemon.log_file().display()),
        "Ctrl-C ends all of it.".to_owned(),
    ];
    if arguments.devices > 0 && !arguments.without_search {
        let (http, header) = (running.daemon.http(), format!("Authorization: Bearer {TOKEN}"));
        footer.insert(4, format!("ask          curl -H '{header}' 'http://{http}/v1/serials?part=3500'"));
    }
    Screen::new(heading, footer)
}

/// Ends the daemon in order, then the servers; returns a problem if the daemon did not end well.
async fn end(mut running: Running) -> Result<Option<String>> {
    let ended = tokio::task::spawn_blocking(move || {
        let was_running = running.daemon.is_running();
        let status = running.daemon.terminate();
        let tail = running.daemon.log_tail();
        drop(running);
        (was_running, status, tail)
    });
    let (was_running, status, tail) = ended.await?;
    Ok(match status? {
        Some(status) if status.success() && was_running => None,
        Some(status) => Some(format!("the daemon ended with {status}; its log:\n{tail}")),
        None if was_running => Some(format!("the daemon did not end in time; its log:\n{tail}")),
        None => Some(format!("the daemon ended by itself; its log:\n{tail}")),
    })
}
