//! Runs: a runtime claims them, and one driver for each computes the next step from rows and performs it under the lease of the run.
//!
//! | file | what it decides |
//! |---|---|
//! | `runtime`, `context`, `settings`, `error` | what a runtime is made of, what its drivers share, and its errors |
//! | `registrar`, `reloader` | which tools and definitions are registered, and when they are read again |
//! | `dispatcher`, `drivers` | which runs get a driver; what follows when a driver ends |
//! | `shutdown` | how a runtime stops: first nothing new begins, then what is left ends |
//! | `drive`, `driver` | the loop of one run: refresh, decide, perform; how the run ends; what a driver holds |
//! | `decide`, `state` | what comes next, from the rows of a run; without IO |
//! | `read`, `record`, `step_batch`, `step` | which rows are read, how a step is recorded, and how it can fail |
//! | `active_agent`, `limits`, `pause`, `wait` | which agent acts, when its limits end the run, where it pauses, how it waits |
//! | `lease`, `heartbeat` | the calls of the holder of a run, and the thread that renews all leases |
//! | `sweeps`, `cancel_attempts` | when tasks that were left at servers of others are cancelled |
//!
//! # One step, from the message to the end of the run
//!
//! | what | decided by |
//! |---|---|
//! | a run starts | a caller calls the reducer `start_run` (`reducers/src/run/start.rs`): `POST /v1/agents/{name}/runs` (`server/src/routes/runs.rs`), `abide agent run` (`cli/src/agent/run.rs`). A message alone (`append_message`) starts none; in the session of an active run it is a part of the next request |
//! | it gets a driver | `dispatcher` watches runs without one, `drivers` claims (`claim_run` in `reducers/src/run/drive.rs`) |
//! | the next action | `RunState::decide` in `decide`, from rows alone; `pause` can stop before it |
//! | the model is asked | `Driver::answer` in `drive`: limits, guardrails, facts; then `model/request.rs`: summary, budget, request |
//! | an answer is recorded | `model/answer.rs`: message, usage and the requests of its calls in one batch |
//! | a call is admitted | `to_request` in `tools/calls.rs`, for what the model wrote; `request_tool_call` in `reducers/src/tool_call/request.rs`, for what is stored |
//! | a call needs an approval | `request_tool_call`: the tool's row, or the argument `needs_approval` from `interrupt_on` of the definition |
//! | the run waits | `decide` returns `Interrupt`, `Driver::suspend` in `wait` calls `wait_run` (`reducers/src/run/wait.rs`): no driver, no lease |
//! | it continues | `decide_approval` (`reducers/src/approval.rs`) makes the call `pending` and wakes the run; it is claimed like a new one |
//! | the call runs | `run_all` in `tools/calls.rs`: claims it (`claim_tool_call`), then its [`Executor`](crate::tools::executor::Executor) runs it |
//! | leases are renewed | `heartbeat`, for runs and calls; each recorded step renews the lease of its run as well |
//! | the outcome is recorded | `ClaimedCall::record` in `tools/claimed.rs`; for the only call of an answer in one batch with its delivery |
//! | the model gets the result | `Driver::deliver` in `drive`, with the texts of `tools/delivery.rs` |
//! | something is tried again | a request: `Chain` of `abide-models`. A call: `retries` in `tools/calls.rs` asks, `fail_tool_call` (`reducers/src/tool_call/finish.rs`) decides. A run: `drivers` |
//! | the run ends | `Driver::finish` or `Driver::end_after` in `drive`, with `finish_run` (`reducers/src/run/end.rs`) |
//!
//! # After a crash
//!
//! Nothing of a driver survives, and nothing has to. A runtime with the same driver name claims its runs at once; any other one when
//! the lease has expired (`lapse_run`). The new driver reads the rows, and `decide` continues:
//!
//! | the crash comes after | the rows have | the new driver |
//! |---|---|---|
//! | the run started | a message | asks the model |
//! | the request was sent | a part of an answer, as events | asks again; the event `restart` makes the part void (`model/restart.rs`) |
//! | the answer was recorded | an answer with requested calls | runs them, or waits for their approval |
//! | the run began to wait | a run that waits | is needed only after the decision |
//! | the approval | a call that is `pending` | claims and runs the call |
//! | the call was claimed | a call whose lease expires | waits. Then the effect of its tool decides (`after_lapse` in `reducers/src/tool_call/finish.rs`): it runs again, or it is `unknown` and the run waits for a settlement |
//! | the outcome was recorded | a call that has ended | delivers the result |
//! | the result was delivered | a message with the result | asks the model |
//! | the last answer was recorded | an answer without calls | ends the run |
//!
//! `agent/tests/runs/killed.rs` kills a runtime at each of these places.

pub(crate) mod active_agent;
pub(crate) mod cancel_attempts;
pub(crate) mod context;
pub(crate) mod decide;
pub(crate) mod dispatcher;
pub(crate) mod drive;
pub(crate) mod driver;
pub(crate) mod drivers;
pub(crate) mod error;
pub(crate) mod heartbeat;
pub(crate) mod lease;
pub(crate) mod limits;
pub(crate) mod pause;
pub(crate) mod read;
pub(crate) mod record;
pub(crate) mod registrar;
pub(crate) mod reloader;
pub(crate) mod runtime;
pub(crate) mod settings;
pub(crate) mod shutdown;
pub(crate) mod state;
pub(crate) mod step;
pub(crate) mod step_batch;
pub(crate) mod sweeps;
pub(crate) mod wait;
