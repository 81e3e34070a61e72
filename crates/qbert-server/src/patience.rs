//! A connection whose client must take what it is sent.
//!
//! Responses lie in memory until the client has read them, and the connection holds one of the places for connections. So a client
//! that asks and does not read is given up: each [`PORTION`] of a response must be taken within a time limit. That also bounds a
//! client that reads a byte now and then, which a limit on the time without any progress would not.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// What a client has to take within the time limit. A modem of the last century is fast enough.
const PORTION: usize = 64 << 10;

/// A stream that fails if what is written to it is not taken in time.
#[derive(Debug)]
pub(crate) struct Patient<S> {
    stream: S,
    limit: Duration,
    /// Runs from the moment at which the stream takes no more until a portion is taken or nothing is left to write.
    timer: Option<Pin<Box<Sleep>>>,
    /// Bytes that were taken since then.
    taken: usize,
}

impl<S> Patient<S> {
    pub(crate) fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit, timer: None, taken: 0 }
    }

    fn watch(&mut self, written: Poll<io::Result<usize>>, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(bytes)) => {
                self.taken += bytes;
                if self.taken >= PORTION {
                    self.timer = None;
                }
                Poll::Ready(Ok(bytes))
            }
            Poll::Pending => {
                if self.timer.is_none() {
                    self.taken = 0;
                }
                let limit = self.limit;
                let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
                timer.as_mut().poll(context).map(|()| Err(too_slow()))
            }
            failed @ Poll::Ready(Err(_)) => failed,
        }
    }
}

fn too_slow() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the client does not read its response")
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.watch(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Hyper flushes when all that it has is written: the next response has a time of its own.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if flushed.is_ready() {
            self.timer = None;
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

    use std::io::ErrorKind;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
    use tokio::time::{Instant, sleep};

    use super::{PORTION, Patient};

    const LIMIT: Duration = Duration::from_secs(10);

    /// Runs with a clock that jumps to the next timer whenever everything waits, so no time passes.
    fn run<T>(test: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(test)
    }

    fn pair() -> (Patient<DuplexStream>, DuplexStream) {
        let (server, client) = tokio::io::duplex(1024);
        (Patient::new(server, LIMIT), client)
    }

    /// Takes `bytes` every second.
    async fn read_slowly(mut client: DuplexStream, bytes: usize) {
        let mut buffer = vec![0; bytes];
        while client.read_exact(&mut buffer).await.is_ok() {
            sleep(Duration::from_secs(1)).await;
        }
    }

    #[test]
    fn a_client_that_never_reads_is_given_up() {
        run(async {
            let (mut server, _client) = pair();
            let begun = Instant::now();
            let error = server.write_all(&[0; 4096]).await.unwrap_err();
            assert_eq!((error.kind(), begun.elapsed()), (ErrorKind::TimedOut, LIMIT));
        });
    }

    #[test]
    fn a_byte_now_and_then_is_not_enough() {
        run(async {
            let (mut server, client) = pair();
            tokio::spawn(read_slowly(client, 1));
            let begun = Instant::now();
            let error = server.write_all(&vec![0; PORTION]).await.unwrap_err();
            assert_eq!((error.kind(), begun.elapsed()), (ErrorKind::TimedOut, LIMIT));
        });
    }

    #[test]
    fn a_slow_client_gets_all_of_a_long_response() {
        run(async {
            let (mut server, client) = pair();
            tokio::spawn(read_slowly(client, PORTION / 8));
            let begun = Instant::now();
            server.write_all(&vec![0; 20 * PORTION]).await.unwrap();
            assert!(begun.elapsed() > 10 * LIMIT);
        });
    }

    #[test]
    fn every_response_has_its_own_time() {
        run(async {
            let (mut server, client) = pair();
            tokio::spawn(read_slowly(client, 512));
            for _ in 0..20 {
                server.write_all(&[0; 2048]).await.unwrap();
                server.flush().await.unwrap();
                sleep(LIMIT).await;
            }
        });
    }
}
