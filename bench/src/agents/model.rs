//! A model that waits, and records the times of requests and answers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use abide_models::{
    ModelCall, ModelEvent, ModelMessage, ModelProvider, ModelRequest, ModelResponse, ModelStream,
    Stop, Usage,
};
use futures_util::{StreamExt as _, stream};

/// How the model answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Number of answers per run; all except the last one call the tool.
    pub(crate) answers: usize,
    /// Delay before the first chunk of an answer.
    pub(crate) first: Duration,
    /// Number of chunks of the last answer.
    pub(crate) pieces: usize,
    /// Delay between two chunks.
    pub(crate) between: Duration,
}

/// Recorded times.
#[derive(Debug)]
pub(crate) struct Notes {
    born: Instant,
    /// The time of the last answer, by run.
    answered: Mutex<HashMap<String, Instant>>,
    /// Durations from an answer to the next request of its run.
    gaps: Mutex<Vec<Duration>>,
    asked_now: AtomicUsize,
    asked_most: AtomicUsize,
}

impl Notes {
    pub(crate) fn new() -> Notes {
        Notes {
            born: Instant::now(),
            answered: Mutex::default(),
            gaps: Mutex::default(),
            asked_now: AtomicUsize::new(0),
            asked_most: AtomicUsize::new(0),
        }
    }

    /// Microseconds since the start: the content of a chunk.
    pub(crate) fn now_us(&self) -> u128 {
        self.born.elapsed().as_micros()
    }

    /// Durations from each answer to the next request of its run, in milliseconds.
    pub(crate) fn gaps_ms(&self) -> Vec<f64> {
        let gaps = self.gaps.lock().unwrap_or_else(PoisonError::into_inner);
        gaps.iter().map(|gap| gap.as_secs_f64() * 1e3).collect()
    }

    /// Maximum number of concurrent requests.
    pub(crate) fn max_concurrent_requests(&self) -> usize {
        self.asked_most.load(Ordering::Relaxed)
    }

    fn note_request(&self, run: &str) {
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = answered.remove(run) {
            let mut gaps = self.gaps.lock().unwrap_or_else(PoisonError::into_inner);
            gaps.push(at.elapsed());
        }
        let now = self.asked_now.fetch_add(1, Ordering::Relaxed) + 1;
        self.asked_most.fetch_max(now, Ordering::Relaxed);
    }

    fn note_answer(&self, run: String) {
        self.asked_now.fetch_sub(1, Ordering::Relaxed);
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        answered.insert(run, Instant::now());
    }
}

/// The provider.
pub(crate) struct Model {
    pub(crate) pace: Pace,
    pub(crate) notes: std::sync::Arc<Notes>,
}

impl ModelProvider for Model {
    fn id(&self) -> &str {
        "bench"
    }

    fn stream(&self, request: ModelRequest) -> ModelStream {
        let answer = request
            .messages
            .iter()
            .filter(|message| matches!(message, ModelMessage::Assistant { .. }))
            .count()
            + 1;
        let run = request
            .messages
            .iter()
            .find_map(|message| match message {
                ModelMessage::User { text } => Some(text.clone()),
                _ => None,
            })
            .unwrap_or_default();
        let is_last = answer >= self.pace.answers;
        let pieces = if is_last { self.pace.pieces } else { 0 };
        self.notes.note_request(&run);
        let pace = self.pace;
        let notes = std::sync::Arc::clone(&self.notes);
        let answered = move |text: String| ModelResponse {
            text,
            reasoning: None,
            calls: if is_last { Vec::new() } else { vec![call(answer)] },
            stop: if is_last { Stop::End } else { Stop::ToolUse },
            usage: Usage::default(),
            provider: "bench".to_owned(),
            model: "bench".to_owned(),
            carry: None,
            cost_micros: None,
        };
        let begin = (0, String::new(), Some((run, answered)));
        let output = stream::unfold(begin, move |(piece, mut text, mut end)| {
            let notes = std::sync::Arc::clone(&notes);
            async move {
                end.as_ref()?;
                if piece == 0 {
                    tokio::time::sleep(pace.first).await;
                } else if piece < pieces {
                    tokio::time::sleep(pace.between).await;
                }
                if piece < pieces {
                    let word = format!("{} ", notes.now_us());
                    text.push_str(&word);
                    return Some((Ok(ModelEvent::Text(word)), (piece + 1, text, end)));
                }
                let (run, answered) = end.take()?;
                notes.note_answer(run);
                let whole = answered(std::mem::take(&mut text));
                Some((Ok(ModelEvent::Answer(whole)), (piece + 1, text, end)))
            }
        });
        output.boxed()
    }
}

fn call(answer: usize) -> ModelCall {
    let arguments = "{\"order\":\"A-7\"}".to_owned();
    ModelCall { id: format!("c{answer}"), name: "look".to_owned(), arguments }
}
