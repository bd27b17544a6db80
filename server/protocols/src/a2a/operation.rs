//! The names of the operations.

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    SendMessage,
    SendStreamingMessage,
    GetTask,
    ListTasks,
    CancelTask,
    SubscribeToTask,
    CreatePushConfig,
    GetPushConfig,
    ListPushConfigs,
    DeletePushConfig,
    GetExtendedAgentCard,
}

impl Operation {
    /// Returns the operation with the name of the protocol.
    pub(super) fn from_name(name: &str) -> Option<Operation> {
        Some(match name {
            "SendMessage" => Operation::SendMessage,
            "SendStreamingMessage" => Operation::SendStreamingMessage,
            "GetTask" => Operation::GetTask,
            "ListTasks" => Operation::ListTasks,
            "CancelTask" => Operation::CancelTask,
            "SubscribeToTask" => Operation::SubscribeToTask,
            "CreateTaskPushNotificationConfig" => Operation::CreatePushConfig,
            "GetTaskPushNotificationConfig" => Operation::GetPushConfig,
            "ListTaskPushNotificationConfigs" => Operation::ListPushConfigs,
            "DeleteTaskPushNotificationConfig" => Operation::DeletePushConfig,
            "GetExtendedAgentCard" => Operation::GetExtendedAgentCard,
            _ => return None,
        })
    }
}
