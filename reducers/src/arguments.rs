//! The arguments of the built-in reducers, for typed calls: `abide.call(ClaimHandoff::new("ho_1"))`. Reducers that only
//! the engine calls, when a deadline has passed, are not here.

pub use crate::access::identity::{
    ChangeIdentity, CreateIdentity, DisableIdentity, EnableIdentity,
};
pub use crate::access::policy::{DropPolicy, SetPolicy};
pub use crate::access::role::{RemoveRole, SetRole};
pub use crate::access::token::{CreateToken, RevokeToken};
pub use crate::agent::{RegisterAgent, RetireAgent};
pub use crate::approval::DecideApproval;
pub use crate::collection::{DeleteEntries, WriteEntries};
pub use crate::correction::CorrectRun;
pub use crate::delegation::StartChildRun;
pub use crate::exchange::{CloseExchange, RecordExchange, SuspendToolCall};
pub use crate::handoff::{
    ClaimHandoff, HeartbeatHandoff, RejectHandoff, ReleaseHandoff, RequestSupervisorHandoff,
    ResolveHandoff,
};
pub use crate::health::RecordHealth;
pub use crate::memory::{EmbedMemories, ForgetMemories, SaveMemories};
pub use crate::message::AppendMessage;
pub use crate::pause::{PauseRun, RecordPause, ResumeRun};
pub use crate::plan::WritePlan;
pub use crate::prompt::{LabelPrompt, PutPrompt, UnlabelPrompt};
pub use crate::run::drive::{ClaimNextRun, ClaimRun, HeartbeatRun, RecordRun};
pub use crate::run::end::{AbortRun, FinishRun};
pub use crate::run::reserve::ReserveUsage;
pub use crate::run::start::StartRun;
pub use crate::run::wait::WaitRun;
pub use crate::session::create::{CreateSession, OpenSession};
pub use crate::session::update::UpdateSession;
pub use crate::session::{
    CancelSession, CompleteSession, FailSession, ResumeSession, SuspendSession,
};
pub use crate::snapshot::export::ExportRun;
pub use crate::snapshot::fork::ForkSession;
pub use crate::snapshot::import::ImportRun;
pub use crate::summary::RecordSummary;
pub use crate::timer::{CancelTimer, SetTimer};
pub use crate::tool::RegisterTool;
pub use crate::tool_call::cancel::{AcknowledgeCancel, CancelToolCall};
pub use crate::tool_call::claim::{ClaimNextToolCall, ClaimToolCall, HeartbeatToolCall};
pub use crate::tool_call::finish::{CompleteToolCall, FailToolCall, SettleToolCall};
pub use crate::tool_call::request::RequestToolCall;
pub use crate::trace::RecordTrace;
pub use crate::webhook::{DeleteWebhook, PutWebhook, RecordDelivery};
pub use crate::withheld::WithholdAnswer;
