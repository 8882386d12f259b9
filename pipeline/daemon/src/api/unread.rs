//! Drops a client that does not read its answer.
//!
//! hyper bounds the time for the head of a request, but not the time for an answer. A stream of events never ends by
//! itself, so a client that stops reading would keep its place for ever.

use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// A connection on which no write may wait longer than its time; after that, it is an error.
#[derive(Debug)]
pub struct WriteBound<S> {
    stream: S,
    time: Duration,
    /// Runs while a write waits for the client.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteBound<S> {
    pub fn new(stream: S, time: Duration) -> Self {
        Self { stream, time, waiting: None }
    }

    /// Lets a write that went through pass, and ends one that has waited too long.
    fn bounded<T>(&mut self, written: Poll<Result<T>>, context: &mut Context<'_>) -> Poll<Result<T>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let time = self.time;
        ready!(self.waiting.get_or_insert_with(|| Box::pin(sleep(time))).as_mut().poll(context));
        Poll::Ready(Err(Error::from(ErrorKind::TimedOut)))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteBound<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteBound<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.bounded(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.bounded(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.bounded(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.bounded(shut, context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_an_error_and_a_slow_one_is_none() {
        let (server, mut client) = tokio::io::duplex(16);
        let mut server = WriteBound::new(server, Duration::from_secs(10));
        let slow = tokio::spawn(async move {
            let mut read = [0; 64];
            for part in read.chunks_mut(16) {
                sleep(Duration::from_secs(9)).await;
                client.read_exact(part).await.unwrap();
            }
            client
        });
        server.write_all(&[7; 64]).await.unwrap();
        let _client = slow.await.unwrap();
        server.write_all(&[7; 16]).await.unwrap();
        let error = server.write_all(&[7; 16]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }
}
