use http_body_util::BodyExt;
use proptest::prelude::*;

use super::references::Reference;
use super::*;

/// A value with arrays, as functions send it.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Number(u64),
    Text(String),
    Array(Vec<u8>),
    List(Vec<Value>),
    Tuple(Vec<Value>),
    Map(Vec<(String, Value)>),
}

fn encode(value: &Value, tree: &mut Vec<u8>, arrays: &mut Vec<Bytes>) {
    match value {
        Value::Number(number) => write_number(tree, *number),
        Value::Text(text) => {
            header(tree, text.len(), 0xa0, 31, [0xda, 0xdb]).unwrap();
            tree.extend_from_slice(text.as_bytes());
        }
        Value::Array(bytes) => {
            // Such as the package has it: [place, "|u1", [length]].
            let mut content = vec![0x93];
            write_number(&mut content, arrays.len() as u64);
            content.extend_from_slice(b"\xa3|u1\x91");
            write_number(&mut content, bytes.len() as u64);
            arrays.push(Bytes::copy_from_slice(bytes));
            write_extension(tree, ARRAY, &content).unwrap();
        }
        Value::List(items) => {
            header(tree, items.len(), 0x90, 15, [0xdc, 0xdd]).unwrap();
            items.iter().for_each(|item| encode(item, tree, arrays));
        }
        Value::Tuple(items) => {
            let mut content = Vec::new();
            encode(&Value::List(items.clone()), &mut content, arrays);
            write_extension(tree, TUPLE, &content).unwrap();
        }
        Value::Map(pairs) => {
            header(tree, pairs.len(), 0x80, 15, [0xde, 0xdf]).unwrap();
            for (key, value) in pairs {
                encode(&Value::Text(key.clone()), tree, arrays);
                encode(value, tree, arrays);
            }
        }
    }
}

fn packed(value: &Value) -> Packed {
    let (mut tree, mut arrays) = (Vec::new(), Vec::new());
    encode(value, &mut tree, &mut arrays);
    Packed { value: tree.into(), arrays: arrays.into() }
}

fn decode(walk: &mut Walk<'_>, arrays: &[Bytes]) -> Value {
    if let Some((code, inside)) = walk.clone().extension().unwrap() {
        walk.at = inside.end;
        let mut content = Walk { tree: &walk.tree[..inside.end], at: inside.start };
        if code == TUPLE {
            let Value::List(items) = decode(&mut content, arrays) else { panic!("a tuple is no list") };
            return Value::Tuple(items);
        }
        assert_eq!((code, content.list().unwrap()), (ARRAY, 3));
        let array = &arrays[content.number().unwrap() as usize];
        assert_eq!(content.text().unwrap(), b"|u1");
        assert_eq!((content.list().unwrap(), content.number().unwrap()), (1, array.len() as u64));
        return Value::Array(array.to_vec());
    }
    let mut again = walk.clone();
    if let Ok(count) = again.list() {
        *walk = again;
        return Value::List((0..count).map(|_| decode(walk, arrays)).collect());
    }
    let mut again = walk.clone();
    if let Ok(count) = again.map() {
        *walk = again;
        let pair = |walk: &mut Walk<'_>| {
            let key = String::from_utf8(walk.text().unwrap().to_vec()).unwrap();
            (key, decode(walk, arrays))
        };
        return Value::Map((0..count).map(|_| pair(walk)).collect());
    }
    let mut again = walk.clone();
    if let Ok(text) = again.text() {
        *walk = again;
        return Value::Text(String::from_utf8(text.to_vec()).unwrap());
    }
    Value::Number(walk.number().unwrap())
}

fn value_of(packed: &Packed) -> Value {
    let mut walk = Walk { tree: &packed.value, at: 0 };
    let value = decode(&mut walk, &packed.arrays);
    assert_eq!(walk.at, packed.value.len());
    value
}

fn bytes(pieces: Pieces) -> Bytes {
    let mut collected = Box::pin(pieces.collect());
    let waker = std::task::Waker::noop();
    match collected.as_mut().poll(&mut std::task::Context::from_waker(waker)) {
        std::task::Poll::Ready(Ok(body)) => body.to_bytes(),
        _ => panic!("it is all there"),
    }
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<u64>().prop_map(Value::Number),
        ".{0,40}".prop_map(Value::Text),
        proptest::collection::vec(any::<u8>(), 0..200).prop_map(Value::Array),
    ];
    leaf.prop_recursive(4, 40, 20, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..20).prop_map(Value::List),
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::Tuple),
            proptest::collection::vec((".{0,8}", inner), 0..5).prop_map(Value::Map),
        ]
    })
}

proptest! {
    #[test]
    fn values_come_into_other_messages_as_they_are(all in proptest::collection::vec(values(), 0..20)) {
        let mut writer = Writer::default();
        writer.list(all.len()).unwrap();
        all.iter().for_each(|one| writer.value(&packed(one)).unwrap());
        let message = bytes(writer.message().unwrap());
        let read = Packed::read(&message).unwrap();
        let elements: Vec<Value> = read.elements().unwrap().iter().map(value_of).collect();
        prop_assert_eq!(elements, all);
    }

    #[test]
    fn elements_have_their_own_arrays_in_further_messages(all in proptest::collection::vec(values(), 1..20)) {
        let whole = packed(&Value::Tuple(all.clone()));
        for (element, value) in whole.elements().unwrap().iter().zip(&all) {
            let mut writer = Writer::default();
            writer.value(element).unwrap();
            let own = Packed::read(&bytes(writer.message().unwrap())).unwrap();
            let (mut tree, mut arrays) = (Vec::new(), Vec::new());
            encode(value, &mut tree, &mut arrays);
            prop_assert_eq!(own.arrays.len(), arrays.len(), "no other arrays come along");
            prop_assert_eq!(&value_of(&own), value);
        }
    }

    #[test]
    fn whatever_comes_is_understood_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut message = MAGIC.to_vec();
        message.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        message.extend_from_slice(&bytes);
        for message in [Bytes::from(bytes), message.into()] {
            let Ok(packed) = Packed::read(&message) else { continue };
            let _ = packed.fields();
            for element in packed.elements().unwrap_or_default() {
                let _ = Writer::default().value(&element);
            }
        }
    }
}

#[test]
fn what_is_no_message_is_refused() {
    for (bytes, why) in [
        (&b""[..], MessageError::NoMessage(0)),
        (b"RKM1\x01\0\0\0", MessageError::NoMessage(8)),
        (b"RKM1\x01\0\0\0\xc0", MessageError::Other("a list")),
        (b"RKM1\x03\0\0\0\x92\xc1\x90", MessageError::Unknown(0xc1)),
        (b"RKM1\x04\0\0\0\x92\xc0\x90\xc0", MessageError::Long),
        (b"RKM1\x04\0\0\0\x92\xc0\x91\x05", MessageError::NoMessage(12)),
        (b"RKM1\x03\0\0\0\x92\xdd\xff", MessageError::Short),
    ] {
        assert_eq!(Packed::read(&Bytes::from_static(bytes)).err(), Some(why), "{bytes:?}");
    }
    let mut deep = vec![0x92];
    deep.extend([0x91].repeat(DEPTH + 1));
    deep.extend([0xc0, 0x90]);
    let mut message = MAGIC.to_vec();
    message.extend_from_slice(&(deep.len() as u32).to_le_bytes());
    message.extend_from_slice(&deep);
    assert_eq!(Packed::read(&message.into()).err(), Some(MessageError::Deep));
    let foreign = Packed {
        value: Bytes::from_static(b"\xc7\x05\x00\x93\x07\xa1x\x90"),
        arrays: vec![Bytes::new()].into(),
    };
    assert_eq!(Writer::default().value(&foreign), Err(MessageError::NoArray(7, 1)));
}

#[test]
fn what_is_no_list_has_no_elements() {
    assert_eq!(packed(&Value::Number(3)).elements().err(), Some(MessageError::Other("a list")));
    let map = packed(&Value::Map(vec![("held".into(), Value::Number(3))]));
    let fields = map.fields().unwrap();
    assert_eq!((fields[0].0.as_str(), value_of(&fields[0].1)), ("held", Value::Number(3)));
    assert!(Packed { value: Bytes::from_static(b"\xc3"), arrays: Arc::new([]) }.is_true());
}

#[test]
fn references_are_found_wherever_they_stand() {
    let reference = |name: &str, given: bool| {
        let mut content = vec![0x94];
        header(&mut content, name.len(), 0xa0, 31, [0xda, 0xdb]).unwrap();
        content.extend_from_slice(name.as_bytes());
        content.extend_from_slice(b"\xa5int32\x92\x02\x03");
        content.push(0xc2 + u8::from(given));
        let mut tree = Vec::new();
        write_extension(&mut tree, 8, &content).unwrap();
        tree
    };
    let mut tuple = vec![0x92];
    tuple.extend(reference("b", false));
    tuple.push(0xc0);
    // {"x": [reference, ("b", none)]}
    let mut tree = vec![0x81, 0xa1, b'x', 0x92];
    tree.extend(reference("a", true));
    write_extension(&mut tree, TUPLE, &tuple).unwrap();
    let packed = |tree: Vec<u8>| Packed { value: tree.into(), arrays: Arc::default() };
    let of = |name: &str, is_given| Reference { name: name.into(), is_given };
    assert_eq!(packed(tree).references().unwrap(), [of("a", true), of("b", false)]);
    assert_eq!(packed(vec![0x03]).references().unwrap(), []);
    assert_eq!(Packed::default().references().unwrap(), []);
    let mut short = reference("a", true);
    short.pop();
    assert!(packed(short).references().is_err());
}
