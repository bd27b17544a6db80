//! The expansion of `#[derive(TextEnum)]`.

use proc_macro2::TokenStream;
use quote::quote;
use syn::spanned::Spanned as _;
use syn::{Data, DeriveInput, Error, Fields, Ident, Result};

pub(crate) fn expand(item: TokenStream) -> Result<TokenStream> {
    let item: DeriveInput = syn::parse2(item)?;
    let Data::Enum(data) = &item.data else {
        return Err(Error::new(item.span(), "TextEnum can only be derived for enums"));
    };
    if let Some(variant) =
        data.variants.iter().find(|variant| !matches!(variant.fields, Fields::Unit))
    {
        return Err(Error::new(variant.span(), "a text enum can only have unit variants"));
    }
    let name = &item.ident;
    let variants: Vec<_> = data.variants.iter().map(|variant| &variant.ident).collect();
    let texts: Vec<String> =
        variants.iter().map(|variant| snake_case(&variant.to_string())).collect();
    let expected = format!("one of {}", texts.join(", "));
    let spelling = quote! {
        impl #name {
            /// The text as stored and as sent.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { #(Self::#variants => #texts),* }
            }

            fn from_text(text: &str) -> ::std::option::Option<Self> {
                match text {
                    #(#texts => ::std::option::Option::Some(Self::#variants),)*
                    _ => ::std::option::Option::None,
                }
            }
        }

        impl ::std::fmt::Display for #name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
    let cell = cell(name, &texts, &expected);
    let serde = serde(name, &texts, &expected);
    Ok(quote!(#spelling #cell #serde))
}

/// The column implementation.
fn cell(name: &Ident, texts: &[String], expected: &str) -> TokenStream {
    quote! {
        impl ::abide_schema::table::Cell for #name {
            const KIND: ::abide_schema::table::Kind = ::abide_schema::table::Kind::Text;
            const ONE_OF: &'static [&'static str] = &[#(#texts),*];

            fn into_value(self) -> ::abide_schema::value::Value {
                ::abide_schema::value::Value::Text(self.as_str().to_owned())
            }

            fn from_value(
                value: &::abide_schema::value::Value,
            ) -> ::std::result::Result<Self, ::abide_schema::table::WrongCell> {
                let text = match value {
                    ::abide_schema::value::Value::Text(text) => Self::from_text(text),
                    _ => ::std::option::Option::None,
                };
                text.ok_or_else(|| ::abide_schema::table::WrongCell {
                    expected: #expected,
                    found: value.clone(),
                })
            }
        }
    }
}

/// The JSON and JSON Schema implementations.
fn serde(name: &Ident, texts: &[String], expected: &str) -> TokenStream {
    quote! {
        impl ::abide_schema::private::serde::Serialize for #name {
            fn serialize<S: ::abide_schema::private::serde::Serializer>(
                &self,
                serializer: S,
            ) -> ::std::result::Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> ::abide_schema::private::serde::Deserialize<'de> for #name {
            fn deserialize<D: ::abide_schema::private::serde::Deserializer<'de>>(
                deserializer: D,
            ) -> ::std::result::Result<Self, D::Error> {
                use ::abide_schema::private::serde::{Deserialize, de::Error};
                let text = <::std::string::String as Deserialize>::deserialize(deserializer)?;
                Self::from_text(&text).ok_or_else(|| {
                    D::Error::custom(::std::format!("{text:?} is not {}", #expected))
                })
            }
        }

        impl ::abide_schema::private::schemars::JsonSchema for #name {
            fn schema_name() -> ::std::borrow::Cow<'static, str> {
                ::std::stringify!(#name).into()
            }

            fn json_schema(
                _: &mut ::abide_schema::private::schemars::SchemaGenerator,
            ) -> ::abide_schema::private::schemars::Schema {
                ::abide_schema::private::schemars::json_schema!({
                    "type": "string",
                    "enum": [#(#texts),*],
                })
            }
        }
    }
}

/// `AwaitingApproval` → `awaiting_approval`.
fn snake_case(name: &str) -> String {
    let mut text = String::with_capacity(name.len() + 4);
    for (at, letter) in name.chars().enumerate() {
        if letter.is_ascii_uppercase() && at > 0 {
            text.push('_');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}
