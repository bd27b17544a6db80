//! A supervised program whose output is kept up to a size: the beginning and the end. More output does not fail the
//! program, and both of its pipes are always read.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use abide_sandbox::{End, Launch, StopRules};
use abide_sandbox::{Report, split_report};

/// How a program is run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capture {
    pub(crate) timeout: Duration,
    pub(crate) grace: Duration,
    /// Maximum number of bytes to keep of each stream.
    pub(crate) kept: usize,
    /// Maximum number of bytes of each stream before the program is stopped.
    pub(crate) max: usize,
}

/// The result of a program.
pub(crate) struct Captured {
    pub(crate) end: End,
    pub(crate) exit_code: i32,
    pub(crate) stdout: Excerpt,
    pub(crate) stderr: Excerpt,
    pub(crate) report: Option<Report>,
}

impl Capture {
    /// Runs a program without input.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) async fn run(
        &self,
        launch: &Launch,
        cancel: &CancellationToken,
    ) -> io::Result<Captured> {
        let (mut child, group) = launch.spawn()?;
        drop(child.stdin.take());
        let mut stdout = Excerpt::new(self.kept);
        let mut stderr = Excerpt::new(self.kept);
        let out = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let err = child.stderr.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let deadline = Instant::now() + self.timeout;
        let (end, exit_code) = {
            let read = async {
                tokio::try_join!(stdout.read(out, self.max), stderr.read(err, self.max)).is_ok()
            };
            let rules = StopRules { deadline, grace: self.grace, cancel };
            rules.watch(&mut child, &group, read).await
        };
        let mut report = None;
        if let Some(supervisor) = &launch.supervised {
            let (found, text) = split_report(supervisor, &stderr.lossy_tail());
            report = found;
            if report.is_some() {
                stderr.replace_tail(text);
            }
        }
        Ok(Captured { end, exit_code, stdout, stderr, report })
    }
}

/// The beginning and the end of a stream.
pub(crate) struct Excerpt {
    max: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    all: usize,
}

impl Excerpt {
    fn new(max: usize) -> Excerpt {
        Excerpt { max, head: Vec::new(), tail: VecDeque::new(), all: 0 }
    }

    /// Reads to the end, or up to a size.
    async fn read(&mut self, mut from: impl AsyncRead + Unpin, max: usize) -> Result<(), ()> {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(read @ 1..) = from.read(&mut buffer).await {
            self.push(&buffer[..read]);
            if self.all > max {
                return Err(());
            }
        }
        Ok(())
    }

    fn push(&mut self, bytes: &[u8]) {
        self.all += bytes.len();
        let half = self.max.div_ceil(2);
        let (first, rest) = bytes.split_at(bytes.len().min(half - self.head.len()));
        self.head.extend_from_slice(first);
        self.tail.extend(rest);
        let over = self.tail.len().saturating_sub(self.max - half);
        self.tail.drain(..over);
    }

    /// Returns the text, with a mark for the omitted part. Invalid UTF-8 is replaced.
    pub(crate) fn text(&self) -> String {
        let tail: Vec<u8> = self.tail.iter().copied().collect();
        let omitted = self.all.saturating_sub(self.head.len() + tail.len());
        if omitted == 0 {
            let whole = [self.head.as_slice(), &tail].concat();
            return String::from_utf8_lossy(&whole).trim_end().to_owned();
        }
        // Characters at the cuts are omitted if they are incomplete.
        let from = tail.iter().position(|byte| byte & 0xC0 != 0x80).unwrap_or(0);
        let head = String::from_utf8_lossy(&self.head);
        let head = head.trim_end_matches(char::REPLACEMENT_CHARACTER);
        let tail = String::from_utf8_lossy(&tail[from..]);
        format!("{head}\n[{omitted} bytes omitted]\n{}", tail.trim_end())
    }

    /// Returns the last part, in which a supervisor reports.
    fn lossy_tail(&self) -> String {
        let tail: Vec<u8> = self.tail.iter().copied().collect();
        let whole = if tail.len() < 4_096 { [self.head.as_slice(), &tail].concat() } else { tail };
        String::from_utf8_lossy(&whole).into_owned()
    }

    fn replace_tail(&mut self, text: String) {
        let whole = self.tail.len() < 4_096;
        self.all -= self.tail.len();
        if whole {
            self.all -= self.head.len();
            self.head.clear();
        }
        self.all += text.len();
        self.tail = text.into_bytes().into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_and_the_end_are_kept() {
        let mut excerpt = Excerpt::new(8);
        excerpt.push(b"0123456789");
        excerpt.push(b"abcdef");
        assert_eq!(excerpt.text(), "0123\n[8 bytes omitted]\ncdef");
        let mut short = Excerpt::new(8);
        short.push("äöü\n".as_bytes());
        assert_eq!(short.text(), "äöü");
    }
}
