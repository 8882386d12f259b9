//! `run`: the daemon. Starts the tasks of its roles, serves HTTP, and stops in order.
//!
//! The stop, in order; a second signal ends the process at once:
//! 1. At a signal, `/readyz` answers 503. HTTP answers all other requests until step 4.
//! 2. The readers append the rows that they have read, and wait until the log holds them.
//! 3. The lanes commit their rows with their progress. Tasks are cut off after `limits.shutdown` and lose nothing.
//! 4. HTTP accepts no more requests; running ones get their time. The mint, which they may need, ends last.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anabranch_pipeline::config::{ApplicationConfig, Config, Scope};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::identifiers::UuidOrders;
use anabranch_pipeline::supervise::{Supervisor, TaskStates};
use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Cli, Outcome, block_on};
use crate::api::{ApiContext, Listener, REQUEST_TIME_MAX};
use crate::exit::Exit;
use crate::lookup::Lookup;
use crate::observe::polling::kept;
use crate::observe::{Observatory, poll, recent};
use crate::operations::Actions;
use crate::reconciliations::{OnDrift, ReconciliationBook};
use crate::relations::Relations;
use crate::roles::{self, Role};
use crate::sharing::Yields;
use crate::tasks::Requests;
use crate::telemetry::Telemetry;
use crate::wiring::{FluxIdentifiers, SpillRoom, Wiring, lanes};
use crate::{coupons, output, reconciliations, restarts, retention, sharing, tasks, telemetry, watchdog};

/// Run the daemon: readers, lanes and the HTTP API, until SIGTERM or Ctrl-C
#[derive(Debug, Args)]
pub struct Arguments {
    /// Role of this process; may be repeated. Default: all roles
    #[arg(long = "role", value_enum)]
    roles: Vec<Role>,
}

pub fn run(cli: &Cli, arguments: &Arguments) -> Outcome {
    let config = cli.configuration()?;
    let roles = match arguments.roles.as_slice() {
        [] => &Role::ALL,
        [Role::Api] if config.http.applications.is_empty() => return Err(vec![nothing_to_serve()]),
        [Role::Reconciler] if config.reconcile.is_idle() => return Err(vec![nothing_to_reconcile()]),
        [Role::Dispatcher] | [Role::Granter] | [Role::Dispatcher, Role::Granter]
            if config.coupon_system.is_none() =>
        {
            return Err(vec![nothing_to_grant()]);
        }
        roles => roles,
    };
    let (exit, states) = block_on(daemon(config, roles))?.map_err(|fault| vec![fault])?;
    if exit == Exit::Definite {
        for (task, status) in states.snapshot() {
            if let Some((code, text)) = status.fault {
                output::stopped_task(cli.log_format, &task, code, &text);
            }
        }
    }
    Ok(exit)
}

fn nothing_to_serve() -> Fault {
    Fault::new(Code::ConfigInvalid, "configuration key http.tokens", "none")
        .needs("at least one token for --role api: its endpoints answer only requests with a token")
        .remedy("see http.tokens in deploy/anabranch.example.toml")
}

fn nothing_to_reconcile() -> Fault {
    Fault::new(
        Code::ConfigInvalid,
        "configuration keys reconcile.schedule, reconcile.spot_check_keys_per_second",
        "none, 0",
    )
    .needs("a schedule of reconciliations, or spot checks between them, for --role reconciler alone")
    .remedy("see [reconcile] in deploy/anabranch.example.toml; one reconciliation by hand: anabranch reconcile --now")
}

fn nothing_to_grant() -> Fault {
    Fault::new(Code::ConfigInvalid, "configuration keys programmes, coupon_system", "none")
        .needs("a [[programmes]] section and [coupon_system] for --role dispatcher or --role granter alone")
        .remedy("see both sections in deploy/anabranch.example.toml")
}

/// The reason why the daemon stops.
enum Event {
    Signal(&'static str),
    AllEnded,
}

async fn daemon(config: Config, roles: &[Role]) -> Result<(Exit, TaskStates), Fault> {
    let moves_changes = roles.contains(&Role::Reader) || roles.contains(&Role::Projector);
    if moves_changes {
        check_spill_folder(&config)?;
    }
    let (mut signals, hang_ups) = (Signals::new()?, restarts::hang_ups()?);
    let metrics = telemetry::install(&config)?;
    let listener = match config.http.listen {
        Some(address) => Some(Listener::bind(address).await?),
        None => None,
    };
    announce(&config, roles, listener.as_ref());

    let root = CancellationToken::new();
    let states = TaskStates::default();
    let group = || Supervisor::new(states.clone(), root.child_token(), config.limits.retry_budget);
    let observatory = Observatory::new(&config);
    let wiring = Wiring::new(config.clone());
    // Without the role, or without tokens, the endpoints for applications are closed.
    let (tokens, serves) = applications(&config, roles);
    let orders = UuidOrders::default();
    let requests = Requests { pauses: observatory.pauses(), yields: Yields::default() };
    let [mut readers, mut projectors, mut others] =
        spawn_tasks(&wiring, &requests, &observatory, roles, group);
    let mut mint = group();
    if serves {
        tasks::spawn_mint(&mut mint, &wiring, &orders);
    }
    // Servants outlive readers and lanes.
    let (served, mut servants, known) = (CancellationToken::new(), JoinSet::new(), (&observatory, &states));
    let (lookup, relations) = observe(&mut servants, (&wiring, &metrics), known, (serves, &served));
    servants.spawn(restarts::run(wiring.clone(), states.clone(), hang_ups, served.child_token()));
    servants.spawn(sharing::run(&wiring, &states, &requests.yields, roles, &served));
    if let Some(listener) = listener {
        let actions = Actions::new(&wiring, served.child_token());
        servants.spawn(actions.clone().finished());
        let known = (observatory.clone(), states.clone());
        let shown = context(&wiring, roles, known, (metrics, tokens, orders), (lookup, relations), actions);
        servants.spawn(listener.serve(shown, served.child_token()));
    }
    // The watchdog is fed to the end of the process, because a stop has its own limit.
    tokio::spawn(watchdog::run(states.clone(), root.child_token()));
    watchdog::started().await;

    let ended = async {
        all_finished(&readers, &projectors).await;
        // Applications are answered also when every reader and lane has stopped, and reconciliations need no task of
        // this process.
        if serves || !moves_changes {
            std::future::pending::<()>().await;
        }
    };
    let event = tokio::select! {
        name = signals.next() => Event::Signal(name),
        () = ended => Event::AllEnded,
    };
    let stop = async {
        observatory.stops();
        watchdog::stopping().await;
        let exit = stop(event, [&mut readers, &mut projectors, &mut others], config.limits.shutdown).await;
        served.cancel();
        end_servants(servants).await;
        mint.stop(Instant::now() + MINT_GRACE).await;
        root.cancel();
        exit
    };
    let exit = tokio::select! {
        exit = stop => exit,
        name = signals.next() => {
            tracing::warn!(signal = name, "second signal: ending at once");
            std::process::exit(signals.exit_number(name));
        }
    };
    Ok((exit, states))
}

/// Returns the applications whose tokens this process knows, and whether it serves them. Without the role `api` a token
/// with the scope `status` still shows the full texts, and opens nothing else.
fn applications(config: &Config, roles: &[Role]) -> (Vec<ApplicationConfig>, bool) {
    let mut known = config.http.applications.clone();
    let has_role = roles.contains(&Role::Api);
    if !has_role {
        known.iter_mut().for_each(|application| application.scopes.retain(|scope| *scope == Scope::Status));
    }
    let serves = has_role && !known.is_empty();
    (known, serves)
}

/// Returns what the handlers of HTTP requests show and use.
fn context(
    wiring: &Wiring,
    roles: &[Role],
    (observatory, tasks): (Observatory, TaskStates),
    (metrics, applications, orders): (Telemetry, Vec<ApplicationConfig>, UuidOrders),
    (lookup, relations): (Option<Lookup>, Option<Relations>),
    actions: Actions,
) -> ApiContext {
    let config = wiring.config();
    ApiContext {
        name: config.name.clone(),
        observatory,
        tasks,
        roles: roles.to_vec(),
        metrics,
        applications,
        operators: config.http.operators.clone(),
        actions,
        orders,
        lookup,
        documents: wiring.documents(),
        flux: FluxIdentifiers::new(wiring),
        relations,
        book: ReconciliationBook::new(wiring),
        days: coupons::CouponDays::new(wiring),
    }
}

/// Checks the spill folder at the start, because reads need it only when it is late.
fn check_spill_folder(config: &Config) -> Result<(), Fault> {
    for warning in SpillRoom::of(&config.spill_dir)?.warnings(&config.spill_dir) {
        tracing::warn!("{warning}");
    }
    Ok(())
}

/// Resolves when no reader, lane or cache is at work. One that has stopped may be restarted while another one works.
async fn all_finished(readers: &Supervisor, projectors: &Supervisor) {
    while !(readers.is_finished() && projectors.is_finished()) {
        readers.finished().await;
        projectors.finished().await;
    }
}

/// Spawns three groups, which are stopped in this order: readers; lanes and caches; tasks that never end by themselves,
/// for whose end the daemon does not wait.
fn spawn_tasks(
    wiring: &Wiring,
    requests: &Requests,
    observatory: &Observatory,
    roles: &[Role],
    group: impl Fn() -> Supervisor,
) -> [Supervisor; 3] {
    let (mut readers, mut projectors, mut others) = (group(), group(), group());
    let config = wiring.config();
    if roles.contains(&Role::Reader) {
        let yields = &requests.yields;
        config.sources.iter().for_each(|source| tasks::spawn_reader(&mut readers, wiring, yields, source));
    }
    if roles.contains(&Role::Projector) {
        lanes(config).iter().for_each(|lane| tasks::spawn_lane(&mut projectors, wiring, requests, lane));
        config.caches.iter().for_each(|cache| tasks::spawn_cache(&mut projectors, wiring, &cache.name));
        for documents in wiring.all_documents() {
            if let Some(kept) = documents.tombstones_kept {
                tasks::spawn_sweep(&mut others, wiring, &documents, kept);
            }
        }
        retention::spawn_sweeps(&mut others, wiring);
    }
    if roles.contains(&Role::Reconciler) {
        reconciliations::spawn_reconciliations(&mut others, wiring);
        let observatory = observatory.clone();
        let on_drift: OnDrift = Arc::new(move |store: &str, source: &str| {
            observatory.drift_seen(store, source, std::time::Instant::now());
        });
        reconciliations::spawn_spot_checks(&mut others, wiring, &on_drift);
    }
    // Without a coupon system nothing is granted.
    if let Ok(lane_lag) = coupons::LaneLag::new(wiring) {
        if roles.contains(&Role::Dispatcher) {
            coupons::spawn_dispatchers(&mut others, wiring, &lane_lag);
        }
        if roles.contains(&Role::Granter) {
            coupons::spawn_granter(&mut others, wiring, &lane_lag);
        }
    }
    [readers, projectors, others]
}

/// Spawns the upkeep of metrics, the poll of the servers, the record of the last hours and, if the daemon serves
/// applications, the watch of cache, lanes and tables for lookups; returns the lookups that are configured.
fn observe(
    servants: &mut JoinSet<()>,
    (wiring, metrics): (&Wiring, &Telemetry),
    (observatory, states): (&Observatory, &TaskStates),
    (serves, served): (bool, &CancellationToken),
) -> (Option<Lookup>, Option<Relations>) {
    let own = (metrics.clone(), served.child_token());
    servants.spawn(kept("the upkeep of metrics", served.child_token(), move || {
        upkeep(own.0.clone(), own.1.clone())
    }));
    servants.spawn(poll::run(wiring.clone(), observatory.clone(), served.child_token()));
    let own = (observatory.clone(), states.clone(), served.child_token());
    servants.spawn(kept("the record of the last hours", served.child_token(), move || {
        recent::record(own.0.clone(), own.1.clone(), own.2.clone())
    }));
    let status = || {
        let observatory = observatory.clone();
        move || observatory.status(&BTreeMap::new(), std::time::Instant::now())
    };
    let lookup = serves.then(|| Lookup::new(wiring)).flatten();
    if let Some(lookup) = lookup.clone() {
        let own = (status(), served.child_token());
        servants.spawn(kept("the watch for lookups", served.child_token(), move || {
            lookup.clone().keep_current(own.0.clone(), own.1.clone())
        }));
    }
    let relations = serves.then(|| Relations::new(wiring)).flatten();
    if let Some(relations) = relations.clone() {
        let own = (status(), served.child_token());
        servants.spawn(kept("the watch for relations", served.child_token(), move || {
            relations.clone().keep_current(own.0.clone(), own.1.clone())
        }));
    }
    (lookup, relations)
}

/// Waits for the servants, but not for a request that never ends: it must not hold the process.
async fn end_servants(mut servants: JoinSet<()>) {
    let ended = async { while servants.join_next().await.is_some() {} };
    if tokio::time::timeout(REQUEST_TIME_MAX, ended).await.is_err() {
        servants.abort_all();
    }
}

/// Time for the mint to free its lease, the only thing left for it to do.
const MINT_GRACE: Duration = Duration::from_secs(2);

async fn stop(event: Event, groups: [&mut Supervisor; 3], limit: Duration) -> Exit {
    match event {
        Event::Signal(name) => tracing::info!(signal = name, "stopping: readers, then lanes"),
        Event::AllEnded => tracing::error!("every task has ended"),
    }
    let deadline = Instant::now() + limit;
    let mut ended = true;
    // Tasks of the third group never end by themselves.
    let are_stopped = groups[..2].iter().all(|group| group.are_stopped());
    for group in groups {
        ended &= group.stop(deadline).await;
    }
    match event {
        Event::AllEnded => {
            if are_stopped {
                Exit::Definite
            } else {
                Exit::Internal
            }
        }
        Event::Signal(_) if ended => {
            tracing::info!("stopped in order");
            Exit::Success
        }
        Event::Signal(_) => {
            tracing::warn!(
                limit_seconds = limit.as_secs(),
                "some tasks did not end within limits.shutdown_seconds and were cut off; nothing is lost: the next \
                 start resumes from committed progress"
            );
            Exit::Transient
        }
    }
}

fn announce(config: &Config, roles: &[Role], listener: Option<&Listener>) {
    let names = |names: Vec<&str>| names.join(",");
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        name = config.name,
        roles = roles::names(roles),
        log = %config.log.url,
        sources = names(config.sources.iter().map(|source| source.name.as_str()).collect()),
        targets = names(config.targets.iter().map(|target| target.name.as_str()).collect()),
        projections = names(config.projections.iter().map(|projection| projection.name.as_str()).collect()),
        "anabranch starts"
    );
    if let Some(listener) = listener {
        tracing::info!(address = %listener.address, "HTTP listens");
    }
}

/// Folds the samples of histograms, also when no scrape comes.
async fn upkeep(metrics: Telemetry, cancel: CancellationToken) {
    let mut ticks = tokio::time::interval(telemetry::UPKEEP_INTERVAL);
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            _ = ticks.tick() => metrics.run_upkeep(),
        }
    }
}

/// The signals that end the daemon.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

const TERMINATE: &str = "SIGTERM";
const INTERRUPT: &str = "SIGINT";

impl Signals {
    fn new() -> Result<Self, Fault> {
        let take = |kind| {
            signal(kind).map_err(|error| {
                Fault::new(Code::Internal, "signals", "no handler could be installed").caused_by(error)
            })
        };
        Ok(Self { terminate: take(SignalKind::terminate())?, interrupt: take(SignalKind::interrupt())? })
    }

    /// Returns the name of the next signal. Cancel safe.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => TERMINATE,
            _ = self.interrupt.recv() => INTERRUPT,
        }
    }

    /// Returns 128 + the signal's number, as a shell shows it.
    fn exit_number(&self, name: &str) -> i32 {
        let kind = if name == TERMINATE { SignalKind::terminate() } else { SignalKind::interrupt() };
        128 + kind.as_raw_value()
    }
}
