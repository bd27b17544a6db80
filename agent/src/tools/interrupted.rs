//! What calls have changed that were interrupted and whose outcome is unknown.

use serde_json::Value;

use crate::run::driver::Driver;

/// Adds the changed files to the requests to settle calls, as far as their tools know them. The event that asks for a decision
/// has them, so an auditor finds them also if the call is settled as failed.
pub(crate) async fn add_files(driver: &Driver, requests: &mut [Value]) {
    for request in requests.iter_mut().filter(|request| request["status"] == "unknown") {
        let name = request["tool_name"].as_str().unwrap_or_default().to_owned();
        let call_id = request["tool_call_id"].as_str().unwrap_or_default().to_owned();
        let Some(tool) = driver.shared.tools.get(&name) else { continue };
        if let Some(Value::Object(found)) = tool.interrupted(call_id).await
            && let Some(fields) = request.as_object_mut()
        {
            fields.extend(found);
        }
    }
}
