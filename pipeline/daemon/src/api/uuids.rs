//! `POST /v1/uuids`: new uuids, each given out once in the world.
//!
//! A list and no range: consecutive numbers are not what the layout gives (`identifiers` says why). Text, because many
//! JSON readers lose digits of numbers above 2⁵³.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, mpsc, oneshot};

use super::guard::Body;
use super::problem::Problem;

/// An answer of about 200 KB, given out within 3 ms of a machine's sequence.
const COUNT_MAX: u32 = 10_000;
/// Requests that wait for their turn.
const ORDERS_MAX: usize = 64;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wanted {
    count: u32,
}

#[derive(Debug, Serialize)]
pub struct Given {
    uuids: Vec<String>,
}

/// A request for the one who holds a machine number.
#[derive(Debug)]
pub struct Order {
    pub count: u32,
    /// Dropped when it cannot be carried out.
    pub answer: oneshot::Sender<Vec<u64>>,
}

/// Where requests wait. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Orders {
    sender: mpsc::Sender<Order>,
    /// For one attempt of the minting task after the other.
    pub receiver: Arc<Mutex<mpsc::Receiver<Order>>>,
}

impl Default for Orders {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(ORDERS_MAX);
        Self { sender, receiver: Arc::new(Mutex::new(receiver)) }
    }
}

pub async fn give(State(orders): State<Orders>, Body(wanted): Body<Wanted>) -> Result<Json<Given>, Problem> {
    let count = wanted.count;
    if !(1..=COUNT_MAX).contains(&count) {
        let detail = format!("count is {count}; 1 to {COUNT_MAX} are given at once");
        let remedy = "ask again for the rest";
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "count-out-of-range", detail, remedy));
    }
    let (answer, given) = oneshot::channel();
    let unavailable = |detail: &str| {
        Problem::passing("uuids-unavailable", detail, "the task uuids in GET /v1/status says why; try again")
    };
    orders
        .sender
        .try_send(Order { count, answer })
        .map_err(|_| unavailable(&format!("{ORDERS_MAX} requests wait already")))?;
    let uuids = given.await.map_err(|_| unavailable("the machine number was lost"))?;
    Ok(Json(Given { uuids: uuids.iter().map(u64::to_string).collect() }))
}
