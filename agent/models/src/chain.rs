//! A chain of candidates: each is tried a few times, in order, until one answers.
//!
//! A failure in the middle of an answer is reported as an event, so that the caller can discard the partial output.
//! [`ModelErrorKind`] decides which failures are retried and which go to the next candidate.

#[cfg(test)]
mod tests;

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;

use crate::{
    ModelError, ModelEvent, ModelProvider, ModelRequest, ModelResponse, ModelStream, Resolved,
    Restart,
};

/// The retry policy of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Attempts with each candidate; at least one is made.
    pub attempts: u32,
    /// The delay before the second attempt. It doubles for each later attempt.
    pub first_wait: Duration,
    /// The maximum delay. If a provider asks for a longer delay, the next candidate is tried, or the error is
    /// returned.
    pub longest_wait: Duration,
    /// If set, each delay is randomized between half and all of its value, derived from this seed and the number of
    /// the attempt. This spreads the retries of clients that were refused at the same time.
    pub seed: Option<u64>,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            attempts: 3,
            first_wait: Duration::from_secs(1),
            longest_wait: Duration::from_secs(60),
            seed: None,
        }
    }
}

impl Retry {
    /// One attempt with each candidate.
    #[must_use]
    pub fn never() -> Self {
        Self { attempts: 1, ..Self::default() }
    }

    /// The delay after the given number of attempts with one candidate.
    fn wait(&self, made: u32, total: u32) -> Duration {
        let doubled = 2_u32.saturating_pow(made.saturating_sub(1));
        let wait = self.first_wait.saturating_mul(doubled).min(self.longest_wait);
        match self.seed {
            Some(seed) => wait.mul_f64(0.5 + 0.5 * fraction(seed ^ u64::from(total))),
            None => wait,
        }
    }
}

/// Several candidates in order.
#[derive(Clone, Debug)]
pub struct Chain {
    candidates: Vec<Resolved>,
    retry: Retry,
}

impl Chain {
    /// A chain of these candidates.
    ///
    /// # Panics
    /// If the list is empty.
    #[must_use]
    pub fn new(candidates: Vec<Resolved>, retry: Retry) -> Self {
        assert!(!candidates.is_empty(), "a chain has at least one candidate");
        Self { candidates, retry }
    }
}

/// The model of the request is ignored: each candidate is asked for its own model.
impl ModelProvider for Chain {
    /// The id of the first candidate.
    fn id(&self) -> &str {
        self.candidates[0].provider.id()
    }

    fn stream(&self, request: ModelRequest) -> ModelStream {
        let trying = RequestState {
            chain: self.clone(),
            request,
            candidate: 0,
            made: 0,
            total: 0,
            step: Step::Begin(Duration::ZERO),
        };
        stream::unfold(trying, async |mut trying| {
            let item = trying.next().await?;
            Some((item, trying))
        })
        .boxed()
    }
}

/// The state of a request.
struct RequestState {
    chain: Chain,
    request: ModelRequest,
    candidate: usize,
    /// Attempts with this candidate.
    made: u32,
    /// Attempts in total.
    total: u32,
    step: Step,
}

enum Step {
    /// Ask the candidate after this delay.
    Begin(Duration),
    Listen(ModelStream),
    Over,
}

impl RequestState {
    async fn next(&mut self) -> Option<Result<ModelEvent, ModelError>> {
        loop {
            match std::mem::replace(&mut self.step, Step::Over) {
                Step::Begin(wait) => {
                    tokio::time::sleep(wait).await;
                    self.step = Step::Listen(self.ask());
                }
                Step::Listen(mut stream) => {
                    let early =
                        || ModelError::invalid_response("the stream ended without an answer");
                    match stream.next().await.unwrap_or_else(|| Err(early())) {
                        Ok(ModelEvent::Answer(answer)) => {
                            return Some(Ok(ModelEvent::Answer(self.finish_answer(answer))));
                        }
                        Ok(event) => {
                            self.step = Step::Listen(stream);
                            return Some(Ok(event));
                        }
                        Err(error) => return Some(self.handle_failure(error)),
                    }
                }
                Step::Over => return None,
            }
        }
    }

    fn ask(&mut self) -> ModelStream {
        self.made += 1;
        self.total += 1;
        let Resolved { provider, model, .. } = &self.chain.candidates[self.candidate];
        provider.stream(ModelRequest { model: model.clone(), ..self.request.clone() })
    }

    /// Adds the cost to an answer, by the price of the candidate that answered. Its reason to stop becomes a code.
    fn finish_answer(&self, answer: ModelResponse) -> ModelResponse {
        let price = self.chain.candidates[self.candidate].price;
        let cost_micros = price.and_then(|price| price.cost_micros(&answer.usage));
        ModelResponse { cost_micros, stop: answer.stop.with_codes(), ..answer }
    }

    /// Handles a failure: schedules another attempt, or returns the error.
    fn handle_failure(&mut self, error: ModelError) -> Result<ModelEvent, ModelError> {
        let retry = self.chain.retry;
        let wait = retry.wait(self.made, self.total).max(error.retry_after.unwrap_or_default());
        let again = error.retryable() && self.made < retry.attempts && wait <= retry.longest_wait;
        let another = error.kind.another_may() && self.candidate + 1 < self.chain.candidates.len();
        let after = match (again, another) {
            (true, _) => wait,
            (false, true) => {
                self.candidate += 1;
                self.made = 0;
                Duration::ZERO
            }
            (false, false) => return Err(error),
        };
        self.step = Step::Begin(after);
        let next = &self.chain.candidates[self.candidate];
        let provider = next.provider.id().to_owned();
        let model = next.model.clone();
        tracing::info!(
            name: "model_retried",
            code = error.code(),
            provider,
            model,
            ?after,
            "a model request is retried"
        );
        let attempt = self.total + 1;
        Ok(ModelEvent::Restarted(Restart { error, provider, model, attempt, after }))
    }
}

/// A pseudorandom number from 0 to 1, derived from the seed. SplitMix64; Steele, Lea and Flood (2014).
fn fraction(seed: u64) -> f64 {
    let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    f64::from(u32::try_from(mixed >> 32).unwrap_or(u32::MAX)) / f64::from(u32::MAX)
}
