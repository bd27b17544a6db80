//! Typed values of a tree. The functions of serde are generic and compiled for each type, so they only choose: what can
//! be decided without the type is in `scalar` and `error`.

use std::rc::Rc;
use std::slice::Iter;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error as _, IntoDeserializer as _, MapAccess,
    SeqAccess, VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use crate::error::{Error, ErrorKind, Expected};
use crate::node::{Content, Entry, Node};
use crate::scalar::{Resolved, Scalar};

impl Node {
    fn scalar(&self, expected: Expected) -> Result<&Scalar, Error> {
        match &self.content {
            Content::Scalar(scalar) => Ok(scalar),
            _ => Err(ErrorKind::WrongType(expected).into()),
        }
    }

    fn integer(&self, min: i128, max: i128) -> Result<i128, Error> {
        let expected = if min == 0 { Expected::UnsignedInteger } else { Expected::Integer };
        Ok(self.scalar(expected)?.as_integer(min, max)?)
    }

    fn signed(&self, min: i64, max: i64) -> Result<i64, Error> {
        let value = self.integer(min.into(), max.into())?;
        i64::try_from(value).map_err(Error::custom)
    }

    fn unsigned(&self, max: u64) -> Result<u64, Error> {
        let value = self.integer(0, max.into())?;
        u64::try_from(value).map_err(Error::custom)
    }

    fn words(&self) -> Result<&str, Error> {
        Ok(self.scalar(Expected::Text)?.as_text()?)
    }

    /// Whether it is null, or nothing.
    pub(crate) fn is_null(&self) -> bool {
        match &self.content {
            Content::Scalar(scalar) => scalar.is_null(),
            Content::Absent => true,
            Content::List(_) | Content::Map(_) => false,
        }
    }

    /// Whether nothing is written where a value is expected. It means null, but a person who has written `approval:` and nothing
    /// below it does not expect that the field is ignored.
    fn is_blank(&self) -> bool {
        matches!(&self.content, Content::Scalar(scalar) if scalar.is_blank())
    }

    /// Returns the items of a list.
    fn items(&self) -> Result<Items<'_>, Error> {
        match &self.content {
            Content::List(items) => Ok(Items(items.iter())),
            Content::Absent => Ok(Items([].iter())),
            _ => Err(ErrorKind::WrongType(Expected::List).into()),
        }
    }

    /// Returns the fields of a map.
    fn fields(&self) -> Result<Fields<'_>, Error> {
        match &self.content {
            Content::Map(entries) => Ok(Fields { entries: entries.iter(), value: None }),
            Content::Absent => Ok(Fields { entries: [].iter(), value: None }),
            _ => Err(ErrorKind::WrongType(Expected::Map).into()),
        }
    }
}

impl<'de> Deserializer<'de> for &'de Node {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let scalar = match &self.content {
            Content::Scalar(scalar) => scalar,
            Content::List(_) => return self.deserialize_seq(visitor),
            Content::Map(_) => return self.deserialize_map(visitor),
            Content::Absent => return visitor.visit_unit(),
        };
        match scalar.resolve()? {
            Resolved::Null => visitor.visit_unit(),
            Resolved::Boolean(value) => visitor.visit_bool(value),
            Resolved::Unsigned(value) => visitor.visit_u64(value),
            Resolved::Signed(value) => visitor.visit_i64(value),
            Resolved::Number(value) => visitor.visit_f64(value),
            Resolved::Text(text) => visitor.visit_borrowed_str(text),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_bool(self.scalar(Expected::Boolean)?.as_boolean()?)
    }

    fn deserialize_i8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_i64(self.signed(i8::MIN.into(), i8::MAX.into())?)
    }

    fn deserialize_i16<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_i64(self.signed(i16::MIN.into(), i16::MAX.into())?)
    }

    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_i64(self.signed(i32::MIN.into(), i32::MAX.into())?)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_i64(self.signed(i64::MIN, i64::MAX)?)
    }

    fn deserialize_u8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_u64(self.unsigned(u8::MAX.into())?)
    }

    fn deserialize_u16<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_u64(self.unsigned(u16::MAX.into())?)
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_u64(self.unsigned(u32::MAX.into())?)
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_u64(self.unsigned(u64::MAX)?)
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_f64(self.scalar(Expected::Number)?.as_number()?)
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_borrowed_str(self.words()?)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.is_blank() {
            let why = "the value is missing: write one, or remove the field";
            return Err(ErrorKind::Sentence(why.to_owned()).into());
        }
        if self.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.is_null() {
            return visitor.visit_unit();
        }
        Err(ErrorKind::WrongType(Expected::Null).into())
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        match &self.content {
            Content::Map(entries) if entries.is_empty() => visitor.visit_unit(),
            _ => self.deserialize_unit(visitor),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let mut items = self.items()?;
        let value = visitor.visit_seq(&mut items)?;
        items.end()?;
        Ok(value)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let mut fields = self.fields()?;
        let value = visitor.visit_map(&mut fields)?;
        fields.end()?;
        Ok(value)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_map(visitor)
    }

    /// A variant is a word, or a map with the variant as its only key.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let variant = match &self.content {
            Content::Scalar(_) => Variant { name: self, value: None },
            Content::Map(entries) => match &entries[..] {
                [Entry { key, value }] => Variant { name: key, value: Some(value) },
                _ => {
                    let why = "expected a map with one key".to_owned();
                    return Err(ErrorKind::Sentence(why).into());
                }
            },
            Content::List(_) | Content::Absent => {
                return Err(ErrorKind::WrongType(Expected::Text).into());
            }
        };
        visitor.visit_enum(variant)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! { bytes byte_buf }
}

/// The rest of a list.
struct Items<'de>(Iter<'de, Rc<Node>>);

impl Items<'_> {
    /// Checks that everything was read, which a tuple does not ask for.
    fn end(&mut self) -> Result<(), Error> {
        match self.0.next() {
            None => Ok(()),
            Some(item) => {
                let why = "the list has more values than expected".to_owned();
                Err(Error::new(ErrorKind::Sentence(why), item.position))
            }
        }
    }
}

impl<'de> SeqAccess<'de> for &mut Items<'de> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        let Some(item) = self.0.next() else { return Ok(None) };
        seed.deserialize(&**item).map(Some).map_err(|error| item.locate(error))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.0.len())
    }
}

/// The rest of a map.
struct Fields<'de> {
    entries: Iter<'de, Entry>,
    /// The value of the key that was read last.
    value: Option<&'de Rc<Node>>,
}

impl Fields<'_> {
    fn end(&mut self) -> Result<(), Error> {
        match self.entries.next() {
            None => Ok(()),
            Some(Entry { key, .. }) => {
                let why = "the map has more fields than expected".to_owned();
                Err(Error::new(ErrorKind::Sentence(why), key.position))
            }
        }
    }
}

impl<'de> MapAccess<'de> for &mut Fields<'de> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        let Some(Entry { key, value }) = self.entries.next() else { return Ok(None) };
        self.value = Some(value);
        seed.deserialize(&**key).map(Some).map_err(|error| key.locate(error))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let Some(value) = self.value.take() else {
            return Err(Error::custom("the value of a field is read before its key"));
        };
        seed.deserialize(&**value).map_err(|error| value.locate(error))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.entries.len())
    }
}

/// A variant of an enum.
struct Variant<'de> {
    name: &'de Node,
    value: Option<&'de Rc<Node>>,
}

impl<'de> EnumAccess<'de> for Variant<'de> {
    type Error = Error;
    type Variant = Variant<'de>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Variant<'de>), Error> {
        let name = self.name.scalar(Expected::Text)?;
        // `null` can be a variant.
        let variant = seed.deserialize(name.text.as_str().into_deserializer());
        Ok((variant.map_err(|error| self.name.locate(error))?, self))
    }
}

impl<'de> Variant<'de> {
    /// Returns the value of a variant that has one.
    fn payload(&self) -> Result<&'de Node, Error> {
        self.value.map(|value| &**value).ok_or_else(|| {
            let name = self.name.text().unwrap_or_default();
            let why = format!("`{name}` needs a value: write `{{ {name}: VALUE }}`");
            Error::new(ErrorKind::Sentence(why), self.name.position)
        })
    }
}

impl<'de> VariantAccess<'de> for Variant<'de> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        match self.value {
            Some(value) if !value.is_null() => {
                Err(Error::new(ErrorKind::WrongType(Expected::Null), value.position))
            }
            _ => Ok(()),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        let value = self.payload()?;
        seed.deserialize(value).map_err(|error| value.locate(error))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        let value = self.payload()?;
        value.deserialize_seq(visitor).map_err(|error| value.locate(error))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let value = self.payload()?;
        value.deserialize_map(visitor).map_err(|error| value.locate(error))
    }
}
