//! What an MCP server answers, as text for a model. The answer itself is kept whole beside it.

use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};

/// The text of an answer: text as it is, everything else named with its size.
pub(super) fn text_of(result: &CallToolResult) -> String {
    let blocks: Vec<String> = result.content.iter().map(block).collect();
    match &result.structured_content {
        // By the specification the text says the same; where there is none, the structure speaks.
        Some(value) if blocks.is_empty() => value.to_string(),
        None if blocks.is_empty() => "no output".to_owned(),
        _ => blocks.join("\n"),
    }
}

fn block(block: &ContentBlock) -> String {
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
            _ => "[a resource of a kind that is not known]".to_owned(),
        },
        ContentBlock::ResourceLink(link) => {
            let about = link.description.as_deref().map(|text| format!(": {text}"));
            format!("[link to {} {}{}]", link.name, link.uri, about.unwrap_or_default())
        }
        _ => "[content of a kind that is not known]".to_owned(),
    }
}

fn sized(what: &str, mime_type: &str, base64: &str) -> String {
    let padding = base64.bytes().rev().take_while(|byte| *byte == b'=').count();
    let bytes = (base64.len() / 4 * 3).saturating_sub(padding);
    format!("[{what}, {mime_type}, {bytes} bytes]")
}
