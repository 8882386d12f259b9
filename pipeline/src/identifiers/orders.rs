//! Requests for uuids, and their queue before the task that holds a machine number.

use std::sync::Arc;

use tokio::sync::{Mutex, mpsc, oneshot};

use crate::error::Fault;

/// Requests that wait for their turn, at most.
pub const ORDERS_MAX: usize = 64;

/// A request to the task that holds a machine number.
#[derive(Debug)]
pub struct UuidOrder {
    pub count: u32,
    /// Key of the client: an order with the same key gets the same uuids again.
    pub key: Option<String>,
    /// The uuids; `None` if the key was used for another count; a fault if the key cannot be stored. It is dropped when
    /// the order cannot be carried out.
    pub answer: oneshot::Sender<Result<Option<Vec<u64>>, Fault>>,
}

/// The queue of requests. Clones share it and are cheap.
#[derive(Debug, Clone)]
pub struct UuidOrders {
    pub sender: mpsc::Sender<UuidOrder>,
    /// Receiver that one attempt of the minting task after the other locks.
    pub receiver: Arc<Mutex<mpsc::Receiver<UuidOrder>>>,
}

impl Default for UuidOrders {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(ORDERS_MAX);
        Self { sender, receiver: Arc::new(Mutex::new(receiver)) }
    }
}
