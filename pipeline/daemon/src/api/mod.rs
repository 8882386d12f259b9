//! The HTTP listener: metrics, health, readiness, status, the live page and, with tokens, endpoints for applications.
//!
//! `/` is the live page (`page.rs`), and `/v1/events` keeps it live. `health.rs` answers probes. `guard.rs` checks
//! requests to the endpoints for applications and operators, `body.rs` reads their bodies, and `problem.rs` holds every
//! error. `openapi.json` describes them; it is written by hand, and a test compares it with the routes.

mod body;
pub mod client;
mod dispatch;
mod events;
mod flux;
mod guard;
mod health;
mod history;
mod load;
mod operations;
mod page;
mod problem;
mod relations;
mod search;
mod serials;
mod series;
mod serve;
mod trace;
mod unread;
pub mod uuids;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use anabranch_pipeline::config::{ApplicationConfig, OperatorConfig};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::identifiers::UuidOrders;
use anabranch_pipeline::metrics as names;
use anabranch_pipeline::supervise::TaskStates;
use axum::extract::{FromRef, State};
use axum::http::{HeaderMap, Method, Uri, header};
use axum::middleware::from_fn_with_state;
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, get, post};
use axum::{Json, Router};
use metrics::gauge;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use self::events::Events;
use self::guard::Guard;
pub use self::guard::TIME_LIMIT as REQUEST_TIME_MAX;
use self::load::LoadView;
use self::problem::Problem;
use self::serve::ConnectionBounds;
use crate::coupons::CouponDays;
use crate::lookup::Lookup;
use crate::observe::{Observatory, StatusView};
use crate::operations::Actions;
use crate::reconciliations::ReconciliationBook;
use crate::relations::Relations;
use crate::roles::Role;
use crate::telemetry::Telemetry;
use crate::wiring::{Documents, FluxIdentifiers};

const OPENAPI: &str = include_str!("openapi.json");
/// Remedy for most wrong requests.
const SEE_DESCRIPTION: &str = "see GET /v1/openapi.json";

/// State of the process that the handlers show and use.
pub struct ApiContext {
    /// The configuration's name.
    pub name: String,
    pub observatory: Observatory,
    pub tasks: TaskStates,
    /// Roles of this process.
    pub roles: Vec<Role>,
    pub metrics: Telemetry,
    /// Applications with their tokens; without any, their endpoints are closed.
    pub applications: Vec<ApplicationConfig>,
    /// People who may change something, in every process.
    pub operators: Vec<OperatorConfig>,
    pub actions: Actions,
    pub orders: UuidOrders,
    /// `None` when there are no mapping tables.
    pub lookup: Option<Lookup>,
    pub documents: Option<Documents>,
    /// `None` when the configuration makes no identifiers.
    pub flux: Option<FluxIdentifiers>,
    /// `None` when no relation index of payment documents is configured.
    pub relations: Option<Relations>,
    pub book: ReconciliationBook,
    /// Days of coupon programmes that are begun by hand.
    pub days: CouponDays,
}

/// The context of the handlers, with the guard and the events that all requests share.
struct Served {
    context: ApiContext,
    guard: Guard,
    events: Events,
}

impl Served {
    fn status(&self, now: Instant) -> StatusAnswer {
        let shown = &self.context;
        let status = shown.observatory.status(&shown.tasks.snapshot(), now);
        let (name, version) = (shown.name.clone(), env!("CARGO_PKG_VERSION").to_owned());
        StatusAnswer { name, version, status, load: LoadView::now(&shown.metrics) }
    }
}

/// State of the router, one for all requests; each has a clone.
#[derive(Clone)]
struct Shared(Arc<Served>);

impl FromRef<Shared> for Option<Lookup> {
    fn from_ref(Shared(shown): &Shared) -> Self {
        shown.context.lookup.clone()
    }
}

impl FromRef<Shared> for Option<Documents> {
    fn from_ref(Shared(shown): &Shared) -> Self {
        shown.context.documents.clone()
    }
}

impl FromRef<Shared> for Option<FluxIdentifiers> {
    fn from_ref(Shared(shown): &Shared) -> Self {
        shown.context.flux.clone()
    }
}

impl FromRef<Shared> for Option<Relations> {
    fn from_ref(Shared(shown): &Shared) -> Self {
        shown.context.relations.clone()
    }
}

impl FromRef<Shared> for UuidOrders {
    fn from_ref(Shared(shown): &Shared) -> Self {
        shown.context.orders.clone()
    }
}

/// The answer of `GET /v1/status`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StatusAnswer {
    pub name: String,
    pub version: String,
    #[serde(flatten)]
    pub status: StatusView,
    #[serde(default)]
    pub load: LoadView,
}

/// A bound listener, not serving yet.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    pub address: SocketAddr,
    bounds: ConnectionBounds,
}

impl Listener {
    /// Binds the address. Port 0 takes any free port, and [`Listener::address`] holds the one taken.
    pub async fn bind(address: SocketAddr) -> Result<Self, Fault> {
        let failed = |error: std::io::Error| {
            Fault::new(Code::ListenFailed, "http.listen", format!("{address} cannot be bound"))
                .needs("an address of this machine and a free port")
                .remedy(format!(
                    "find the holder: ss -ltnp 'sport = :{}'; or set another http.listen, or port 0 for any free one",
                    address.port()
                ))
                .caused_by(error)
        };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address, bounds: ConnectionBounds::default() })
    }

    /// Serves until `cancel`; requests that are being answered are finished.
    pub async fn serve(self, shown: ApiContext, cancel: CancellationToken) {
        let guard = Guard::new(&shown.applications, &shown.operators, self.bounds.body_time);
        let served = Arc::new(Served { context: shown, guard, events: Events::new(cancel.clone()) });
        let serving = serve::serve(self.listener, router(Shared(served.clone())), self.bounds, cancel);
        tokio::join!(serving, events::produce(served));
    }
}

/// Served routes: path, method, handler.
type Routes = Vec<(&'static str, Method, MethodRouter<Shared>)>;

fn open_routes() -> Routes {
    vec![
        ("/", Method::GET, get(page::index)),
        ("/page/{file}", Method::GET, get(page::asset)),
        ("/metrics", Method::GET, get(metrics)),
        ("/healthz", Method::GET, get(health::healthy)),
        ("/livez", Method::GET, get(health::live)),
        ("/readyz", Method::GET, get(health::ready)),
        ("/readyz/{role}", Method::GET, get(health::ready_in_role)),
        ("/v1/status", Method::GET, get(status)),
        ("/v1/events", Method::GET, get(events::stream)),
        ("/v1/series", Method::GET, get(series::recent)),
        ("/v1/reconciliations", Method::GET, get(history::list)),
        ("/v1/runbook/{section}", Method::GET, get(page::runbook_section)),
        ("/v1/openapi.json", Method::GET, get(openapi)),
    ]
}

/// Returns the routes that require a token.
fn application_routes() -> Routes {
    vec![
        ("/v1/uuids", Method::POST, post(uuids::give)),
        ("/v1/flux/identifiers", Method::POST, post(flux::give)),
        ("/v1/flux/{id}", Method::GET, get(relations::document)),
        ("/v1/flux/{id}/relations", Method::GET, get(relations::below)),
        ("/v1/serials/{code}", Method::GET, get(serials::by_code)),
        ("/v1/serials/lookup", Method::GET, get(serials::by_query)),
        ("/v1/serials/lookup", Method::POST, post(serials::batch)),
        ("/v1/serials", Method::GET, get(search::find)),
        ("/v1/dispatch/{programme}/{day}", Method::POST, post(dispatch::begin)),
    ]
}

/// Returns the routes that require the token of an operator.
fn operator_routes() -> Routes {
    vec![
        ("/v1/operations", Method::GET, get(operations::list)),
        ("/v1/operations", Method::POST, post(operations::carry_out)),
        ("/v1/trace", Method::POST, post(trace::follow)),
    ]
}

fn router(shared: Shared) -> Router {
    let with = |routes: Routes| {
        routes.into_iter().fold(Router::new(), |router, (path, _, handler)| router.route(path, handler))
    };
    // `openapi.json` does not describe this route: it is a path with an empty code, and the handler refuses it.
    let guarded = with(application_routes())
        .route("/v1/serials/", get(serials::without_code))
        .route_layer(from_fn_with_state(shared.0.guard.clone(), guard::admit));
    let of_operators = with(operator_routes())
        .route_layer(from_fn_with_state(shared.0.guard.clone(), guard::admit_operator));
    with(open_routes())
        .merge(guarded)
        .merge(of_operators)
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_method)
        .with_state(shared)
}

async fn unknown_route(uri: Uri) -> Problem {
    let detail = format!("nothing is served at {}", uri.path());
    Problem::new(Code::RouteUnknown, detail, SEE_DESCRIPTION)
}

async fn wrong_method(method: Method, uri: Uri) -> Problem {
    let detail = format!("{method} is not served at {}", uri.path());
    Problem::new(Code::MethodNotAllowed, detail, SEE_DESCRIPTION)
}

async fn openapi() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI)
}

async fn metrics(State(Shared(shown)): State<Shared>) -> impl IntoResponse {
    gauge!(names::HTTP_IN_FLIGHT).set(shown.guard.in_flight() as f64);
    if let Some(flux) = &shown.context.flux {
        flux.show_used();
    }
    let text = shown.context.metrics.scrape(&shown.context.observatory);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}

async fn status(
    State(Shared(served)): State<Shared>,
    headers: HeaderMap,
) -> Result<Json<StatusAnswer>, Problem> {
    let is_known = served.guard.knows_sender("/v1/status", &headers)?;
    let mut answer = served.status(Instant::now());
    match is_known {
        true => {}
        false if served.guard.hides_texts() => answer.status.leave_out_faults(),
        false => answer.status.leave_out_holders(),
    }
    Ok(Json(answer))
}

#[cfg(test)]
mod tests;
