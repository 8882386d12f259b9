//! The work queue of the coupon day in memory: messages in the order in which they came, and a limit of their number.
//!
//! The port [`WorkQueue`] states the contract. Deliveries are not simulated: a message that a test takes is done.

use std::sync::{Arc, Mutex};

use anabranch_coupons::ports::WorkQueue;
use anabranch_coupons::records::{Message, part};
use anabranch_pipeline::error::{Code, Fault};
use jiff::Timestamp;

use super::lock;

/// A message of the queue, with the time from which it may be taken.
pub type WaitingMessage = (Timestamp, Message);

/// The queue; clones share it.
#[derive(Debug, Clone)]
pub struct MemoryWorkQueue(Arc<Mutex<QueueState>>);

#[derive(Debug)]
struct QueueState {
    waiting: Vec<WaitingMessage>,
    /// Messages that the queue holds at most.
    room: usize,
}

/// Adds a message to a queue that holds at most `room` messages; a full queue refuses it and stays as it is.
pub fn enter_message(
    waiting: &mut Vec<WaitingMessage>,
    room: usize,
    from: Timestamp,
    message: &Message,
) -> Result<(), Fault> {
    if waiting.len() >= room {
        return Err(Fault::new(Code::LogFull, "work queue", "no room for more")
            .needs("granters that work its messages off"));
    }
    waiting.push((from, message.clone()));
    Ok(())
}

impl MemoryWorkQueue {
    /// Makes an empty queue that holds at most `room` messages.
    pub fn new(room: usize) -> Self {
        Self(Arc::new(Mutex::new(QueueState { waiting: Vec::new(), room })))
    }

    /// Lets the queue hold at most this number of messages from now on.
    pub fn set_room(&self, room: usize) {
        lock(&self.0).room = room;
    }

    /// Returns the number of messages that wait.
    pub fn held(&self) -> usize {
        lock(&self.0).waiting.len()
    }

    /// Takes the next messages of a part out of the queue, at most `limit`, in the order in which they came.
    pub fn work_off(&self, number: u64, limit: usize) -> Vec<Message> {
        let mut taken = Vec::new();
        lock(&self.0).waiting.retain(|(_, message)| {
            let is_of_part = message.members.first().is_some_and(|member| part(member.user) == number);
            let is_taken = is_of_part && taken.len() < limit;
            if is_taken {
                taken.push(message.clone());
            }
            !is_taken
        });
        taken
    }
}

impl WorkQueue for MemoryWorkQueue {
    async fn publish(&self, messages: &[Message]) -> Result<(), Fault> {
        let mut state = lock(&self.0);
        let room = state.room;
        // A message without members says nothing.
        for message in messages.iter().filter(|message| !message.members.is_empty()) {
            enter_message(&mut state.waiting, room, Timestamp::UNIX_EPOCH, message)?;
        }
        Ok(())
    }
}
