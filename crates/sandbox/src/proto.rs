//! Protocol buffers as they lie in a packet or a file, without a schema: fields by number, in their order.
//!
//! What is not protocol buffers is `None`, never a panic. A [`Message`] that is written again has every field that it
//! was read with, those that we know nothing of too.

/// Writes fields one after the other.
#[derive(Debug, Default)]
pub struct Encoder(pub Vec<u8>);

impl Encoder {
    pub fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    pub fn number(&mut self, field: u32, value: u64) -> &mut Self {
        self.varint(u64::from(field) << 3);
        self.varint(value);
        self
    }

    pub fn bytes(&mut self, field: u32, value: &[u8]) -> &mut Self {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }
}

/// What a field holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// Four or eight bytes, as they are.
    Fixed(&'a [u8]),
}

pub fn varint(input: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = input.split_first()?;
        *input = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn take<'a>(input: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = input.split_at_checked(length)?;
    *input = rest;
    Some(taken)
}

/// Takes the next field off the front.
pub fn field<'a>(input: &mut &'a [u8]) -> Option<(u64, Value<'a>)> {
    let key = varint(input)?;
    let value = match key & 7 {
        0 => Value::Number(varint(input)?),
        1 => Value::Fixed(take(input, 8)?),
        2 => {
            let length = usize::try_from(varint(input)?).ok()?;
            Value::Bytes(take(input, length)?)
        }
        5 => Value::Fixed(take(input, 4)?),
        _ => return None,
    };
    Some((key >> 3, value))
}

/// A message that is changed and written again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message(Vec<(u64, Field)>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Field {
    Number(u64),
    Bytes(Vec<u8>),
    Fixed(Vec<u8>),
}

impl Message {
    pub fn read(mut input: &[u8]) -> Option<Message> {
        let mut fields = Vec::new();
        while !input.is_empty() {
            let (number, value) = field(&mut input)?;
            fields.push((
                number,
                match value {
                    Value::Number(value) => Field::Number(value),
                    Value::Bytes(value) => Field::Bytes(value.to_vec()),
                    Value::Fixed(value) => Field::Fixed(value.to_vec()),
                },
            ));
        }
        Some(Message(fields))
    }

    pub fn write(&self) -> Vec<u8> {
        let mut out = Encoder::default();
        for (number, field) in &self.0 {
            let kind = match field {
                Field::Number(_) => 0,
                Field::Bytes(_) => 2,
                Field::Fixed(value) if value.len() == 8 => 1,
                Field::Fixed(_) => 5,
            };
            out.varint(number << 3 | kind);
            match field {
                Field::Number(value) => out.varint(*value),
                Field::Bytes(value) => {
                    out.varint(value.len() as u64);
                    out.0.extend_from_slice(value);
                }
                Field::Fixed(value) => out.0.extend_from_slice(value),
            }
        }
        out.0
    }

    pub fn number(&self, field: u64) -> Option<u64> {
        self.all_numbers(field).next()
    }

    /// All fields of this number that hold numbers.
    pub fn all_numbers(&self, field: u64) -> impl Iterator<Item = u64> {
        self.0.iter().filter_map(move |(number, value)| match value {
            Field::Number(value) if *number == field => Some(*value),
            _ => None,
        })
    }

    /// All fields of this number that hold bytes.
    pub fn all_bytes(&self, field: u64) -> impl Iterator<Item = &[u8]> {
        self.0.iter().filter_map(move |(number, value)| match value {
            Field::Bytes(value) if *number == field => Some(&**value),
            _ => None,
        })
    }

    /// Sets a number, in the place of what is there or at the end.
    pub fn set(&mut self, field: u64, to: u64) -> &mut Self {
        let mut there = self.0.iter_mut().filter(|(number, _)| *number == field);
        if let (Some((_, only)), None) = (there.next(), there.next()) {
            *only = Field::Number(to);
            return self;
        }
        self.put(field, [Field::Number(to)])
    }

    pub fn set_bytes(&mut self, field: u64, to: Vec<u8>) -> &mut Self {
        self.put(field, [Field::Bytes(to)])
    }

    /// Adds a field behind those that are there.
    pub fn add_bytes(&mut self, field: u64, new: Vec<u8>) -> &mut Self {
        self.0.push((field, Field::Bytes(new)));
        self
    }

    pub fn remove(&mut self, field: u64) -> &mut Self {
        self.0.retain(|(number, _)| *number != field);
        self
    }

    /// Has these and no others as the fields of this number, however many there were.
    pub fn set_all_bytes(&mut self, field: u64, to: impl IntoIterator<Item = Vec<u8>>) -> &mut Self {
        self.put(field, to.into_iter().map(Field::Bytes))
    }

    /// Puts fields in the place of the first of their number, or at the end. No other of that number is left.
    fn put(&mut self, field: u64, new: impl IntoIterator<Item = Field>) -> &mut Self {
        let at = self.0.iter().position(|(number, _)| *number == field).unwrap_or(self.0.len());
        self.remove(field);
        self.0.splice(at..at, new.into_iter().map(|value| (field, value)));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_message_is_changed_and_keeps_what_is_not_known() {
        let mut inner = Encoder::default();
        inner.number(1, 7).bytes(9, b"kept").number(2, 8);
        inner.0.extend([5 << 3 | 5, 1, 2, 3, 4, 6 << 3 | 1, 1, 2, 3, 4, 5, 6, 7, 8]);
        let mut message = Message::read(&inner.0).unwrap();
        assert_eq!(message.write(), inner.0);
        message.set(2, 300).set(11, 1).remove(1);
        let again = Message::read(&message.write()).unwrap();
        assert_eq!((again.number(1), again.number(2), again.number(11)), (None, Some(300), Some(1)));
        assert_eq!(again.all_bytes(9).collect::<Vec<_>>(), [b"kept"]);
    }

    #[test]
    fn fewer_fields_leave_none_of_the_old_ones() {
        let entry = |text: &[&[u8]]| {
            let mut out = Encoder::default();
            out.number(1, 7);
            text.iter().for_each(|text| {
                out.bytes(14, text);
            });
            out.number(2, 8);
            Message::read(&out.0).unwrap()
        };
        let mut message = entry(&[b"a", b"b", b"c"]);
        message.set_all_bytes(14, [b"d".to_vec()]);
        assert_eq!(message, entry(&[b"d"]));
        message.set_all_bytes(14, [b"e".to_vec(), b"f".to_vec()]);
        assert_eq!(message, entry(&[b"e", b"f"]));
        message.set_all_bytes(14, []);
        assert_eq!(message, entry(&[]));
    }

    proptest! {
        #[test]
        fn what_is_set_is_all_that_is_there(
            before in prop::collection::vec((1..4u64, any::<Vec<u8>>()), 0..12),
            after in prop::collection::vec(any::<Vec<u8>>(), 0..12),
        ) {
            let mut message = Message(before.into_iter().map(|(field, value)| (field, Field::Bytes(value))).collect());
            let others = |message: &Message| -> Vec<_> { message.0.iter().filter(|(field, _)| *field != 2).cloned().collect() };
            let kept = others(&message);
            message.set_all_bytes(2, after.clone());
            prop_assert_eq!(message.all_bytes(2).collect::<Vec<_>>(), after);
            prop_assert_eq!(others(&message), kept);
        }

        #[test]
        fn numbers_survive(value: u64) {
            let mut out = Encoder::default();
            out.varint(value);
            prop_assert_eq!(varint(&mut &out.0[..]), Some(value));
        }

        #[test]
        fn no_bytes_make_it_panic_and_what_is_read_is_written(bytes: Vec<u8>) {
            if let Some(message) = Message::read(&bytes) {
                prop_assert_eq!(Message::read(&message.write()), Some(message));
            }
        }
    }
}
