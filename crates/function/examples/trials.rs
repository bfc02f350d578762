//! Functions that tests call: whatever comes goes back, and panics stay where they are.

use rekindle_function::{Array, Call, Error, Function, Result, Scope, Value, functions};

functions! { c"same" => Same, c"panics" => Panics, c"fails" => Fails, c"parts" => Parts }

macro_rules! stateless {
    ($name:ident, $call:expr) => {
        struct $name;

        impl Function for $name {
            type Instance = ();

            fn setup(_: &Scope<'_>) -> Result<$name> {
                Ok($name)
            }

            fn enter(&self, _: &Scope<'_>) -> Result<()> {
                Ok(())
            }

            fn call<'m>(&self, (): &mut (), call: &Call<'m>) -> Result<Value<'m>> {
                let body: fn(&Call<'m>) -> Result<Value<'m>> = $call;
                body(call)
            }
        }
    };
}

// All arguments, and the keywords.
stateless!(Same, |call| {
    let keywords = Value::Dictionary(call.keywords.clone());
    Ok(Value::List(vec![Value::List(call.arguments.clone()), keywords]))
});

stateless!(Fails, |call| Err(Error::new(call.text(0)?.to_string(), call.text(1)?)));

stateless!(Parts, |call| {
    let array = call.array(0)?.elements::<f64>()?.into_owned();
    let half = array.len() / 2;
    let of = |part: &[f64]| Value::Array(Array::of(part, &[part.len() as u64]));
    Ok(Value::Tuple(vec![of(&array[..half]), of(&array[half..]), call.integer(1)?.into()]))
});

/// Each instance has the number of calls that it has had.
struct Panics;

impl Function for Panics {
    type Instance = i64;

    fn setup(_: &Scope<'_>) -> Result<Panics> {
        Ok(Panics)
    }

    fn enter(&self, _: &Scope<'_>) -> Result<i64> {
        Ok(0)
    }

    fn call<'m>(&self, calls: &mut i64, call: &Call<'m>) -> Result<Value<'m>> {
        *calls += 1;
        if let Some(Value::Text(text)) = call.arguments.first() {
            panic!("{text}");
        }
        Ok((*calls).into())
    }
}
