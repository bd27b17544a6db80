//! An MCP server's answer as text for a model. The complete answer is stored, too.

use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};

/// Returns the text of an answer. Text is unchanged; other content is described with its size.
pub(super) fn text_of(result: &CallToolResult) -> String {
    let blocks: Vec<String> = result.content.iter().map(describe).collect();
    match &result.structured_content {
        // By the specification, the text repeats the structured content. If there is no text, the structure is
        // used.
        Some(value) if blocks.is_empty() => value.to_string(),
        None if blocks.is_empty() => "no output".to_owned(),
        _ => blocks.join("\n"),
    }
}

/// Returns a text unchanged, and a description of any other content.
fn describe(block: &ContentBlock) -> String {
    match block {
        ContentBlock::Text(text) => text.text.clone(),
        ContentBlock::Image(image) => sized("image", &image.mime_type, &image.data),
        ContentBlock::Audio(audio) => sized("audio", &audio.mime_type, &audio.data),
        ContentBlock::Resource(resource) => match &resource.resource {
            ResourceContents::TextResourceContents { uri, text, .. } => {
                format!("[resource {uri}]\n{text}")
            }
            ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
                let mime_type = mime_type.as_deref().unwrap_or("unknown type");
                sized(&format!("resource {uri}"), mime_type, blob)
            }
            _ => "[a resource of an unknown kind]".to_owned(),
        },
        ContentBlock::ResourceLink(link) => {
            let about = link.description.as_deref().map(|text| format!(": {text}"));
            format!("[link to {} {}{}]", link.name, link.uri, about.unwrap_or_default())
        }
        _ => "[content of an unknown kind]".to_owned(),
    }
}

/// Describes data by its kind, its type and its size.
fn sized(what: &str, mime_type: &str, base64: &str) -> String {
    let padding = base64.bytes().rev().take_while(|byte| *byte == b'=').count();
    let bytes = (base64.len() / 4 * 3).saturating_sub(padding);
    format!("[{what}, {mime_type}, {bytes} bytes]")
}
