//! The readable text and the links of an HTML page. It reads any text, in time and memory linear in its length.

use reqwest::Url;

/// Maximum number of links.
const LINKS: usize = 500;

/// Maximum length of a link, in bytes.
const LINK_BYTES: usize = 2_000;

/// The readable part of a page.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Readable {
    pub(super) title: String,
    pub(super) text: String,
    /// Texts and absolute addresses, in the order of the page.
    pub(super) links: Vec<(String, String)>,
}

/// Elements whose content is not text.
const SKIPPED: [&str; 8] =
    ["script", "style", "noscript", "template", "svg", "iframe", "canvas", "object"];

/// Elements that begin and end a line.
const BLOCKS: [&str; 31] = [
    "address",
    "article",
    "aside",
    "blockquote",
    "body",
    "center",
    "dd",
    "details",
    "dialog",
    "div",
    "dl",
    "dt",
    "fieldset",
    "figure",
    "footer",
    "form",
    "header",
    "hr",
    "li",
    "main",
    "nav",
    "ol",
    "p",
    "pre",
    "section",
    "summary",
    "table",
    "tbody",
    "tr",
    "ul",
    "option",
];

/// Reads a page whose address is `base`.
pub(super) fn readable(html: &str, base: &Url) -> Readable {
    let mut reader = Reader { base, ..Reader::new(base) };
    let mut rest = html;
    while !rest.is_empty() {
        let Some(at) = rest.find('<') else {
            reader.text(rest);
            break;
        };
        reader.text(&rest[..at]);
        rest = &rest[at..];
        rest = match Tag::parse(rest) {
            Some((tag, after)) => reader.tag(&tag, after),
            None if rest.starts_with("<!--") => {
                rest.get(4..).and_then(|it| it.split_once("-->")).map_or("", |(_, after)| after)
            }
            None if rest.starts_with("<!") || rest.starts_with("<?") => {
                rest.split_once('>').map_or("", |(_, after)| after)
            }
            None => {
                reader.text("<");
                &rest[1..]
            }
        };
    }
    reader.finish()
}

struct Reader<'a> {
    base: &'a Url,
    title: String,
    text: String,
    links: Vec<(String, String)>,
    /// The target of the open link, and where its text begins.
    link: Option<(String, usize)>,
    is_title: bool,
    /// Depth of `pre` elements.
    verbatim: usize,
    /// Whether a space is due before the next word.
    space: bool,
}

impl<'a> Reader<'a> {
    fn new(base: &'a Url) -> Reader<'a> {
        Reader {
            base,
            title: String::new(),
            text: String::new(),
            links: Vec::new(),
            link: None,
            is_title: false,
            verbatim: 0,
            space: false,
        }
    }

    fn text(&mut self, text: &str) {
        let text = decode_references(text);
        if self.is_title {
            self.title.push_str(&text);
        } else if self.verbatim > 0 {
            self.text.push_str(&text);
        } else {
            for c in text.chars() {
                if c.is_whitespace() {
                    self.space = true;
                } else if !c.is_control() {
                    if self.space && !self.text.is_empty() && !self.text.ends_with('\n') {
                        self.text.push(' ');
                    }
                    self.space = false;
                    self.text.push(c);
                }
            }
        }
    }

    /// Handles a tag; returns the rest of the page.
    fn tag<'t>(&mut self, tag: &Tag<'t>, after: &'t str) -> &'t str {
        let name = tag.name.as_str();
        if SKIPPED.contains(&name) && !tag.is_end && !tag.is_empty {
            return skip(after, name);
        }
        match (name, tag.is_end) {
            ("title", is_end) => self.is_title = !is_end && self.title.is_empty(),
            ("br", _) => self.line(),
            ("pre", false) => {
                self.line();
                self.verbatim += 1;
            }
            ("pre", true) => {
                self.verbatim = self.verbatim.saturating_sub(1);
                self.line();
            }
            ("a", false) => {
                self.end_link();
                self.link = tag.attribute("href").map(|href| (href, self.text.len()));
            }
            ("a", true) => self.end_link(),
            ("img", false) => {
                if let Some(alternative) = tag.attribute("alt") {
                    self.text(&format!(" {alternative} "));
                }
            }
            ("td" | "th", false) => self.space = true,
            ("li", false) => {
                self.line();
                self.text.push_str("- ");
            }
            ("h1" | "h2" | "h3" | "h4" | "h5" | "h6", false) => {
                self.paragraph();
                let level = usize::from(name.as_bytes()[1] - b'0');
                self.text.push_str(&"#".repeat(level));
                self.text.push(' ');
            }
            ("h1" | "h2" | "h3" | "h4" | "h5" | "h6" | "p", _) => self.paragraph(),
            (name, _) if BLOCKS.contains(&name) => self.line(),
            _ => {}
        }
        after
    }

    fn end_link(&mut self) {
        let Some((href, from)) = self.link.take() else { return };
        let target = self.base.join(href.trim()).ok().filter(|url| {
            matches!(url.scheme(), "http" | "https") && url.as_str().len() <= LINK_BYTES
        });
        // The text may have been trimmed at a line break.
        let from = self.text.floor_char_boundary(from.min(self.text.len()));
        let text = self.text[from..].split_whitespace().collect::<Vec<_>>().join(" ");
        if let Some(target) = target.filter(|_| self.links.len() < LINKS) {
            self.links.push((text, target.into()));
        }
    }

    fn line(&mut self) {
        self.space = false;
        let kept = self.text.trim_end_matches([' ', '\t']).len();
        self.text.truncate(kept);
        if !self.text.is_empty() && !self.text.ends_with('\n') {
            self.text.push('\n');
        }
    }

    fn paragraph(&mut self) {
        self.line();
        if !self.text.is_empty() && !self.text.ends_with("\n\n") {
            self.text.push('\n');
        }
    }

    fn finish(mut self) -> Readable {
        self.end_link();
        let title = self.title.split_whitespace().collect::<Vec<_>>().join(" ");
        Readable { title, text: self.text.trim().to_owned(), links: self.links }
    }
}

/// Returns the page after the end tag of an element.
fn skip<'a>(mut rest: &'a str, name: &str) -> &'a str {
    while let Some(at) = rest.find("</") {
        rest = &rest[at..];
        let after = &rest[2..];
        let is_end = after.get(..name.len()).is_some_and(|it| it.eq_ignore_ascii_case(name));
        if is_end {
            return after.split_once('>').map_or("", |(_, after)| after);
        }
        rest = after;
    }
    ""
}

/// A start or end tag.
struct Tag<'a> {
    /// In lower case.
    name: String,
    is_end: bool,
    is_empty: bool,
    attributes: &'a str,
}

impl<'a> Tag<'a> {
    /// Parses a tag at the beginning of a text; returns the rest.
    fn parse(text: &'a str) -> Option<(Tag<'a>, &'a str)> {
        let inner = text.strip_prefix('<')?;
        let (is_end, inner) = match inner.strip_prefix('/') {
            Some(inner) => (true, inner),
            None => (false, inner),
        };
        let length = inner.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(inner.len());
        if length == 0 || !inner.starts_with(|c: char| c.is_ascii_alphabetic()) {
            return None;
        }
        let (name, rest) = inner.split_at(length);
        let end = end_of_tag(rest);
        let attributes = &rest[..end];
        let after = rest.get(end + 1..).unwrap_or("");
        let is_empty = attributes.ends_with('/');
        let tag = Tag { name: name.to_ascii_lowercase(), is_end, is_empty, attributes };
        Some((tag, after))
    }

    /// Returns the decoded value of an attribute.
    fn attribute(&self, wanted: &str) -> Option<String> {
        let mut rest = self.attributes;
        loop {
            rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == '/');
            let length = rest.find(|c: char| c.is_whitespace() || c == '=' || c == '/');
            let (name, after) = rest.split_at(length.unwrap_or(rest.len()));
            let after = after.trim_start();
            let (value, next) = match after.strip_prefix('=').map(str::trim_start) {
                Some(quoted) if quoted.starts_with(['"', '\'']) => {
                    let (quote, inner) = quoted.split_at(1);
                    inner.split_once(quote).unwrap_or((inner, ""))
                }
                Some(plain) => {
                    let end = plain.find(char::is_whitespace).unwrap_or(plain.len());
                    plain.split_at(end)
                }
                None => ("", after),
            };
            if name.eq_ignore_ascii_case(wanted) {
                return Some(decode_references(value));
            }
            if next.is_empty() || next.len() >= rest.len() {
                return None;
            }
            rest = next;
        }
    }
}

/// Where a tag ends: at a `>` outside of quotes.
fn end_of_tag(text: &str) -> usize {
    let mut quote = None;
    let mut before = b' ';
    for (at, byte) in text.bytes().enumerate() {
        match (quote, byte) {
            (None, b'>') => return at,
            // A quote counts only where a value begins.
            (None, b'"' | b'\'') if before == b'=' => quote = Some(byte),
            (Some(open), byte) if open == byte => quote = None,
            _ => {}
        }
        if !byte.is_ascii_whitespace() {
            before = byte;
        }
    }
    // An open quote does not hide the rest of the page.
    text.find('>').unwrap_or(text.len())
}

/// Named characters that occur often in texts.
const NAMED: [(&str, &str); 24] = [
    ("amp", "&"),
    ("lt", "<"),
    ("gt", ">"),
    ("quot", "\""),
    ("apos", "'"),
    ("nbsp", " "),
    ("ndash", "–"),
    ("mdash", "—"),
    ("hellip", "…"),
    ("lsquo", "‘"),
    ("rsquo", "’"),
    ("ldquo", "“"),
    ("rdquo", "”"),
    ("laquo", "«"),
    ("raquo", "»"),
    ("copy", "©"),
    ("reg", "®"),
    ("trade", "™"),
    ("middot", "·"),
    ("bull", "•"),
    ("times", "×"),
    ("euro", "€"),
    ("rarr", "→"),
    ("deg", "°"),
];

/// Returns a text with its character references replaced.
fn decode_references(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let end = rest.bytes().take(12).position(|byte| byte == b';');
        let known = end.and_then(|end| Some((reference(&rest[1..end])?, end + 1)));
        match known {
            Some((character, length)) => {
                out.push_str(&character);
                rest = &rest[length..];
            }
            None => {
                out.push('&');
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
    out
}

fn reference(name: &str) -> Option<String> {
    if let Some(number) = name.strip_prefix('#') {
        let code = match number.strip_prefix(['x', 'X']) {
            Some(hex) => u32::from_str_radix(hex, 16).ok()?,
            None => number.parse().ok()?,
        };
        return char::from_u32(code).map(String::from);
    }
    NAMED.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).to_owned())
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use proptest::prelude::*;

    use super::*;

    fn base() -> Url {
        Url::parse("https://example.com/docs/").expect("it is a URL")
    }

    #[test]
    fn a_page_becomes_text_and_links() {
        let page = "<!doctype html><html><head><title> The &amp; page </title>\
            <style>p { a > b }</style>\
            <script>if (a < b) alert('</p>')</script></head><body><h1>Head</h1><p>One\n two <b>three</b>.\
            <p>A <a href='next.html?a=1&amp;b=2'>next <i>page</i></a> and <a href=javascript:x>none</a>\
            <ul><li>first<li>second &lt;x&gt; &#8364;</ul><pre>  a\n  b</pre><img alt=\"A cat\" src=x>\
            <!-- <p>hidden --> 1 < 2 &unknown; end</body>";
        let Readable { title, text, links } = readable(page, &base());
        expect![[r##"
            The & page
            # Head

            One two three.

            A next page and none
            - first
            - second <x> €
              a
              b
            A cat 1 < 2 &unknown; end
            [("next page", "https://example.com/docs/next.html?a=1&b=2")]"##]]
        .assert_eq(&format!("{title}\n{text}\n{links:?}"));
    }

    #[test]
    fn malformed_pages_end() {
        for (page, text) in [
            ("<", "<"),
            ("a <b", "a"),
            ("<script>never closed <p>x", ""),
            ("<a href=\"never closed>text", "text"),
            ("<!-- never closed", ""),
            ("&#xFFFFFFFF; &#; &", "&#xFFFFFFFF; &#; &"),
            ("<p title='>'>x", "x"),
            ("</p></p></p>", ""),
        ] {
            assert_eq!(readable(page, &base()).text, text, "{page}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_text_is_read(text in "(<|>|/|a|=|\"|'|&|;|#|!|-|p|script|é|\n| ){0,200}") {
            let read = readable(&text, &base());
            prop_assert!(read.text.len() <= text.len() * 2 + 16);
        }
    }
}
