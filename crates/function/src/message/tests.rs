use proptest::prelude::*;

use super::*;

fn values() -> impl Strategy<Value = Value<'static>> {
    let array =
        prop::collection::vec(any::<u8>(), 0..100).prop_map(|bytes| Array::of(&bytes, &[bytes.len() as u64]));
    let leaf = prop_oneof![
        Just(Value::None),
        any::<bool>().prop_map(Value::Boolean),
        any::<i128>().prop_map(Value::Integer),
        any::<i64>().prop_map(|value| Value::Integer(value.into())),
        (-1e9..1e9).prop_map(Value::Real),
        (-1e9..1e9, -1e9..1e9).prop_map(|(real, imaginary)| Value::Complex(real, imaginary)),
        ".*".prop_map(|text| Value::Text(text.into())),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(|bytes| Value::Bytes(bytes.into())),
        array.prop_map(Value::Array),
        any::<f32>().prop_map(|value| Value::Scalar(Array::of(&[value.to_bits()], &[]))),
        ("[a-z0-9]{32}", any::<bool>()).prop_map(|(id, given)| {
            Value::Reference(Reference { id, dtype: "bfloat16".to_string(), shape: vec![3, 5], given })
        }),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        let many = || prop::collection::vec(inner.clone(), 0..6);
        prop_oneof![
            many().prop_map(Value::List),
            many().prop_map(Value::Tuple),
            many().prop_map(Value::Set),
            prop::collection::vec((inner.clone(), inner.clone()), 0..4).prop_map(Value::Dictionary),
        ]
    })
}

proptest! {
    #[test]
    fn values_come_back(value in values()) {
        let message = encode(&value).unwrap();
        prop_assert_eq!(decode(&message).unwrap(), value);
    }

    #[test]
    fn whatever_comes_is_answered(mut message in prop::collection::vec(any::<u8>(), 0..200), whole in any::<bool>()) {
        if whole && message.len() > 8 {
            let size = (message.len() - 8) as u32;
            message[..4].copy_from_slice(MAGIC);
            message[4..8].copy_from_slice(&size.to_le_bytes());
        }
        let _ = decode(&message);
    }

    #[test]
    fn a_message_that_was_damaged_is_answered(value in values(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut message = encode(&value).unwrap();
        let at = at.index(message.len());
        message[at] = byte;
        let _ = decode(&message);
        let _ = decode(&message[..at]);
    }
}

#[test]
fn values_that_are_nested_too_deep_are_refused() {
    let deep = |depth| (0..depth).fold(Value::None, |inner, _| Value::Tuple(vec![inner]));
    assert_eq!(decode(&encode(&deep(DEPTH - 2)).unwrap()), Ok(deep(DEPTH - 2)));
    assert!(decode(&encode(&deep(DEPTH + 2)).unwrap()).unwrap_err().text.contains("deep"));
}

#[test]
fn an_array_that_is_no_array_of_its_shape_is_refused() {
    let array = Array { dtype: "float32".into(), shape: vec![3], data: vec![0; 8].into() };
    assert!(encode(&Value::Array(array)).unwrap_err().text.contains("8 bytes"));
}
