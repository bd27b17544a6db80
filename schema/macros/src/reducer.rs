//! The expansion of `#[reducer]`.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens as _, quote};
use syn::ext::IdentExt as _;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned as _;
use syn::{Error, FnArg, GenericArgument, Ident, ItemFn, Pat, PathArguments, Result, ReturnType};
use syn::{Type, Visibility};

use crate::doc_comment;

/// One argument of the call: a parameter after the context.
struct Argument {
    name: Ident,
    kind: Type,
    /// The type inside `Option`, for an argument that the caller may omit.
    inner: Option<Type>,
    /// Its `#[id(…)]` attribute.
    id: Option<Id>,
    /// Its doc comment; empty if it has none.
    doc: String,
}

impl Argument {
    /// The documentation of its field and of its method.
    fn doc(&self, otherwise: &str) -> String {
        match self.doc.as_str() {
            "" => format!("{otherwise} `{}`.", self.name),
            doc => doc.to_owned(),
        }
    }
}

/// `#[id(Row)]`: the id of an existing row. `#[id(new, Row)]`: an id chosen by the caller for a new row.
/// `#[id(derived, Row)]`: like `new`, and the reducer itself checks an id in the reserved form.
struct Id {
    naming: Ident,
    row: Type,
}

impl Parse for Id {
    fn parse(input: ParseStream<'_>) -> Result<Id> {
        let row: Type = input.parse()?;
        if input.is_empty() {
            return Ok(Id { naming: Ident::new("Existing", row.span()), row });
        }
        input.parse::<syn::Token![,]>()?;
        let naming = match row.to_token_stream().to_string().as_str() {
            "new" => "New",
            "derived" => "Derived",
            _ => {
                return Err(Error::new(
                    row.span(),
                    "expected #[id(Row)], #[id(new, Row)] or #[id(derived, Row)]",
                ));
            }
        };
        Ok(Id { naming: Ident::new(naming, row.span()), row: input.parse()? })
    }
}

/// The options of `#[reducer]`: `roles(app, agent)`, the built-in roles that may call it.
struct Options {
    roles: Vec<Ident>,
}

impl Parse for Options {
    fn parse(input: ParseStream<'_>) -> Result<Options> {
        if input.is_empty() {
            return Ok(Options { roles: vec![Ident::new("app", Span::call_site())] });
        }
        let option: Ident = input.parse()?;
        if option != "roles" {
            let what = "the only option of #[reducer] is roles(…): ids are declared with #[id(…)] on a parameter";
            return Err(Error::new(option.span(), what));
        }
        let names;
        syn::parenthesized!(names in input);
        let roles = Punctuated::<Ident, syn::Token![,]>::parse_terminated(&names)?;
        if roles.is_empty() {
            return Err(Error::new(
                option.span(),
                "roles(…) names no role; admin may call every reducer",
            ));
        }
        Ok(Options { roles: roles.into_iter().collect() })
    }
}

pub(crate) fn expand(options: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let options: Options = syn::parse2(options)?;
    let mut item: ItemFn = syn::parse2(item)?;
    let mut parameters = item.sig.inputs.iter();
    if parameters.next().is_none() {
        return Err(Error::new(item.sig.span(), "a reducer's first parameter is its context"));
    }
    let arguments = parameters.map(argument).collect::<Result<Vec<_>>>()?;
    let ReturnType::Type(_, answer) = &item.sig.output else {
        return Err(Error::new(item.sig.span(), "a reducer returns a Result<_, Abort>"));
    };

    for parameter in &mut item.sig.inputs {
        if let FnArg::Typed(parameter) = parameter {
            parameter.attrs.retain(|attribute| {
                !attribute.path().is_ident("id") && !attribute.path().is_ident("doc")
            });
        }
    }
    let name = &item.sig.ident;
    let visibility = &item.vis;
    let doc = doc_comment(&item.attrs);
    let text = name.to_string();
    let module_doc = format!("The registered form of the reducer [`{text}`](fn@{text}).");
    let call = call(name, &arguments, answer);
    let decode = decode(name, &arguments);
    let definition = definition(name, &doc, &options, answer);
    let typed = typed(name, visibility, &arguments);
    Ok(quote! {
        #item

        #typed

        #[doc = #module_doc]
        #visibility mod #name {
            use super::*;

            #call
            #decode
            #definition
        }
    })
}

/// Generates the struct of the arguments, for callers.
fn typed(reducer: &Ident, visibility: &Visibility, arguments: &[Argument]) -> TokenStream {
    let text = reducer.to_string();
    let name = arguments_name(reducer);
    let doc = format!("The arguments of [`{text}`](fn@{text}).");
    let fields = arguments.iter().map(|argument| {
        let Argument { name, kind, inner, .. } = argument;
        let doc = argument.doc("The argument");
        let omitted = inner
            .is_some()
            .then(|| quote!(#[serde(skip_serializing_if = "::std::option::Option::is_none")]));
        quote! {
            #[doc = #doc]
            #omitted
            #visibility #name: #kind,
        }
    });
    let constructors = constructors(visibility, arguments);
    let without_required = arguments.iter().all(|argument| argument.inner.is_some());
    let default = without_required.then(|| quote!(#[derive(Default)]));
    quote! {
        #[doc = #doc]
        #[derive(Clone, Debug)]
        #default
        #[derive(::abide_schema::private::serde::Serialize)]
        #[serde(crate = "::abide_schema::private::serde")]
        #visibility struct #name {
            #(#fields)*
        }

        // A crate uses only some of the methods. `expect` would fail in one that uses all of them.
        #[allow(dead_code)]
        impl #name {
            #constructors
        }
    }
}

/// Generates `new` with the required arguments, and a method for each optional one.
fn constructors(visibility: &Visibility, arguments: &[Argument]) -> TokenStream {
    let (omitted, required): (Vec<_>, Vec<_>) =
        arguments.iter().partition(|argument| argument.inner.is_some());
    let (names, kinds): (Vec<_>, Vec<_>) = required.iter().map(|it| (&it.name, &it.kind)).unzip();
    let setters = omitted.iter().map(|argument| {
        let Argument { name, inner, .. } = argument;
        let doc = argument.doc("Sets the argument");
        quote! {
            #[doc = #doc]
            #[must_use]
            #visibility fn #name(mut self, #name: impl ::std::convert::Into<#inner>) -> Self {
                self.#name = ::std::option::Option::Some(#name.into());
                self
            }
        }
    });
    let omitted = omitted.iter().map(|argument| &argument.name);
    quote! {
        /// The required arguments.
        #[must_use]
        #visibility fn new(#(#names: impl ::std::convert::Into<#kinds>),*) -> Self {
            Self {
                #(#names: #names.into(),)*
                #(#omitted: ::std::option::Option::None,)*
            }
        }

        #(#setters)*
    }
}

/// `request_tool_call` has the arguments `RequestToolCall`.
fn arguments_name(reducer: &Ident) -> Ident {
    camel_case(reducer)
}

/// Returns a name in snake case as that of a type or a variant.
fn camel_case(snake_case: &Ident) -> Ident {
    let mut name = String::new();
    for word in snake_case.to_string().split('_') {
        let mut letters = word.chars();
        name.extend(letters.next().into_iter().flat_map(char::to_uppercase));
        name.extend(letters);
    }
    Ident::new(&name, snake_case.span())
}

/// Generates the call of the function with decoded arguments.
fn call(name: &Ident, arguments: &[Argument], answer: &Type) -> TokenStream {
    let names: Vec<&Ident> = arguments.iter().map(|argument| &argument.name).collect();
    let ids = arguments.iter().filter_map(|Argument { name, id, .. }| {
        let Id { naming, row } = id.as_ref()?;
        Some(quote! {
            let #name = ::abide_schema::reducer::IdArgument::stored::<#row>(
                #name,
                context,
                ::abide_schema::reducer::IdArgumentKind::#naming,
            )?;
        })
    });
    let arguments = arguments_name(name);
    quote! {
        impl ::abide_schema::reducer::Call for #arguments {
            fn run(
                self: ::std::boxed::Box<Self>,
                context: &mut ::abide_schema::reducer::Context<'_>,
            ) -> ::std::result::Result<
                ::abide_schema::reducer::Reply,
                ::abide_schema::reducer::Abort,
            > {
                let #arguments { #(#names),* } = *self;
                #(#ids)*
                let answer: #answer = super::#name(context, #(#names),*);
                answer.map(::abide_schema::reducer::IntoReply::into_reply)
            }
        }
    }
}

/// Generates the declaration of the arguments, and their decoder.
fn decode(name: &Ident, arguments: &[Argument]) -> TokenStream {
    let text = name.to_string();
    let decoded = arguments_name(name);
    let specs = arguments.iter().map(|Argument { name, kind, inner, .. }| {
        let name = name.unraw().to_string();
        let optional = inner.is_some();
        quote! {
            ::abide_schema::arguments::ArgumentSpec {
                name: #name,
                optional: #optional,
                schema: ::abide_schema::private::schemars::SchemaGenerator::subschema_for::<#kind>,
            }
        }
    });
    let fields = arguments.iter().map(|Argument { name, inner, .. }| {
        let text = name.unraw().to_string();
        match inner {
            None => quote!(#name: read.required(#text)?),
            Some(_) => quote!(#name: read.optional(#text)?),
        }
    });
    let read = if arguments.is_empty() { quote!(_) } else { quote!(read) };
    quote! {
        const ARGUMENTS: &[::abide_schema::arguments::ArgumentSpec] = &[#(#specs),*];

        fn decode(
            arguments: &::abide_schema::CallArguments,
        ) -> ::std::result::Result<
            ::std::boxed::Box<dyn ::abide_schema::reducer::Call>,
            ::abide_schema::refusal::Refusal,
        > {
            let #read =
                ::abide_schema::arguments::ArgumentReader::new(#text, ARGUMENTS, arguments)?;
            Ok(::std::boxed::Box::new(#decoded { #(#fields),* }))
        }
    }
}

/// Generates the definition to register.
fn definition(name: &Ident, doc: &str, options: &Options, answer: &Type) -> TokenStream {
    let text = name.to_string();
    let arguments = arguments_name(name);
    let roles = options.roles.iter().map(camel_case);
    quote! {
        impl ::abide_schema::reducer::Arguments for #arguments {
            const REDUCER: &'static str = #text;
            type Result = <#answer as ::abide_schema::reducer::ReducerReturn>::Result;
        }

        /// The registration: `Module::reducer(…::definition())`.
        #[must_use]
        pub fn definition() -> ::abide_schema::reducer::Definition {
            ::abide_schema::reducer::Definition {
                name: #text,
                // This code is in a module with the name of the function.
                path: ::std::module_path!(),
                doc: #doc,
                roles: &[#(::abide_schema::reducer::BuiltInRole::#roles),*],
                arguments: || ::abide_schema::arguments::schema(ARGUMENTS),
                result: ::abide_schema::reducer::result_schema::<
                    <#answer as ::abide_schema::reducer::ReducerReturn>::Result,
                >,
                decode,
                depth: ::abide_schema::integers::MAX_DEPTH,
            }
        }
    }
}

fn argument(parameter: &FnArg) -> Result<Argument> {
    let FnArg::Typed(parameter) = parameter else {
        return Err(Error::new(parameter.span(), "a reducer is a free function"));
    };
    let Pat::Ident(pattern) = &*parameter.pat else {
        return Err(Error::new(parameter.pat.span(), "a parameter needs a plain name"));
    };
    let kind = (*parameter.ty).clone();
    let inner = within_option(&kind);
    let id = parameter.attrs.iter().find(|attribute| attribute.path().is_ident("id"));
    let id = id.map(|attribute| attribute.parse_args::<Id>()).transpose()?;
    let doc = doc_comment(&parameter.attrs);
    Ok(Argument { name: pattern.ident.clone(), kind, inner, id, doc })
}

fn within_option(kind: &Type) -> Option<Type> {
    let Type::Path(path) = kind else { return None };
    let option = path.path.segments.last().filter(|segment| segment.ident == "Option")?;
    let PathArguments::AngleBracketed(arguments) = &option.arguments else { return None };
    arguments.args.iter().find_map(|argument| match argument {
        GenericArgument::Type(inner) => Some(inner.clone()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(options: TokenStream, item: TokenStream) -> String {
        expand(options, item).expect_err("it is refused").to_string()
    }

    /// Callers name the argument `type`, as `serde` does in the struct for callers.
    #[test]
    fn an_argument_can_have_the_name_of_a_keyword() {
        let item = quote!(
            pub fn ship(ctx: &mut Context<'_>, r#type: String) -> Result<Parcel, Abort> {
                todo()
            }
        );
        let expanded = expand(quote!(), item).expect("it is accepted").to_string();
        assert!(expanded.contains(r#"name : "type""#), "{expanded}");
        assert!(expanded.contains(r#"read . required ("type")"#), "{expanded}");
    }

    #[test]
    fn roles_are_those_of_the_attribute() {
        let roles = |options: TokenStream| {
            let item = quote!(
                pub fn ship(ctx: &mut Context<'_>) -> Result<Parcel, Abort> {
                    todo()
                }
            );
            let expanded = expand(options, item).expect("it is accepted").to_string();
            let (_, roles) = expanded.split_once("roles : & [").expect("there are roles");
            let (roles, _) = roles.split_once(']').expect("the list ends");
            roles.replace(":: abide_schema :: reducer :: BuiltInRole :: ", "").trim().to_owned()
        };
        assert_eq!(roles(quote!()), "App");
        assert_eq!(roles(quote!(roles(admin))), "Admin");
        assert_eq!(roles(quote!(roles(app, agent,))), "App , Agent");
    }

    #[test]
    fn unknown_options_are_refused() {
        let item = || {
            quote!(
                pub fn ship(ctx: &mut Context<'_>) -> Result<Parcel, Abort> {
                    todo()
                }
            )
        };
        assert!(expand(quote!(), item()).is_ok());
        let refused = refusal(quote!(id = "x"), item());
        assert!(refused.starts_with("the only option of #[reducer] is roles(…)"), "{refused}");
        let refused = refusal(quote!(roles()), item());
        assert_eq!(refused, "roles(…) names no role; admin may call every reducer");
        assert_eq!(refusal(quote!(roles(app), roles(agent)), item()), "unexpected token");
        let item = quote!(
            fn ship(ctx: &mut C, #[id(old, Parcel)] id: String) -> Result<Parcel, Abort> {
                todo()
            }
        );
        let refused = refusal(quote!(), item);
        assert_eq!(refused, "expected #[id(Row)], #[id(new, Row)] or #[id(derived, Row)]");
    }
}
