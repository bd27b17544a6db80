//! The arguments of the built-in reducers, the parts of which they consist, and results that are no rows.
//!
//! A struct is named after its reducer: `abide.call(ClaimHandoff::new("ho_1"))` calls `claim_handoff`. `#[reducer]`
//! generates such structs for custom reducers. Reducers that only the engine calls, when a deadline has passed, are not
//! here.

pub use abide_reducers::approval::Decision;
pub use abide_reducers::arguments::*;
pub use abide_reducers::collection::EntryPut;
pub use abide_reducers::correction::{CorrectedLine, CorrectedResult};
pub use abide_reducers::message::Appended;
pub use abide_reducers::plan::NewPlanStep;
pub use abide_reducers::run::drive::ModelUsage;
pub use abide_reducers::run::{NewRunEvent, RunEnd};
pub use abide_reducers::summary::{NewArchivedResult, NewSummary};
pub use abide_reducers::tool::{ApprovalPolicy, Rate, Retry, ToolLimits};
pub use abide_reducers::tool_call::Outcome;
pub use abide_reducers::{NewExchange, NewHealth, NewInput, NewMemory, NewMemoryVector};
pub use abide_schema::caller::{CallLimits, RateLimit};
