//! The path of the vocabulary for packages that depend only on the crate `abide`.

use proc_macro2::{Group, Ident, Literal, Spacing, Span, TokenStream, TokenTree};
use quote::quote;

/// Replaces `::abide_schema` by `::abide::schema`, even in strings such as `serde`'s path to itself.
pub(crate) fn with_facade_path(output: TokenStream) -> TokenStream {
    let mut replaced: Vec<TokenTree> = Vec::new();
    for token in output {
        match token {
            TokenTree::Group(group) => {
                let mut new = Group::new(group.delimiter(), with_facade_path(group.stream()));
                new.set_span(group.span());
                replaced.push(new.into());
            }
            TokenTree::Ident(name) if name == "abide_schema" && follows_path(&replaced) => {
                replaced.extend(path(name.span()));
            }
            TokenTree::Literal(literal) => replaced.push(with_path_in_text(literal).into()),
            token => replaced.push(token),
        }
    }
    replaced.into_iter().collect()
}

/// Whether the tokens end in `::`.
fn follows_path(tokens: &[TokenTree]) -> bool {
    matches!(tokens, [.., TokenTree::Punct(first), TokenTree::Punct(second)]
        if first.as_char() == ':' && first.spacing() == Spacing::Joint && second.as_char() == ':')
}

fn path(span: Span) -> TokenStream {
    let abide = Ident::new("abide", span);
    let schema = Ident::new("schema", span);
    quote!(#abide::#schema)
}

fn with_path_in_text(literal: Literal) -> Literal {
    match literal.to_string().strip_prefix("\"::abide_schema::").and_then(|it| it.strip_suffix('"'))
    {
        Some(rest) => Literal::string(&format!("::abide::schema::{rest}")),
        None => literal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_the_facade_replaces_the_path_of_the_schema() {
        let output = quote! {
            #[serde(crate = "::abide_schema::private::serde")]
            impl ::abide_schema::reducer::Call for Ship {
                fn abide_schema() -> ::std::option::Option<&'static str> { Some("abide_schema") }
            }
        };
        let expected = quote! {
            #[serde(crate = "::abide::schema::private::serde")]
            impl ::abide::schema::reducer::Call for Ship {
                fn abide_schema() -> ::std::option::Option<&'static str> { Some("abide_schema") }
            }
        };
        assert_eq!(with_facade_path(output).to_string(), expected.to_string());
    }
}
