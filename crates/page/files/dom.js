// Elements that stay where they are while what they show changes, so that nothing flickers. Whatever comes from the daemon
// is put into them as text, never as HTML.

/** An element with classes (`kind`), texts and other elements in it. */
export function element(tag, kind = "", ...inner) {
  const made = document.createElement(tag);
  if (kind) made.className = kind;
  made.append(...inner);
  return made;
}

/** Sets a text, if it is another one. */
export function text(where, value) {
  const shown = String(value);
  if (where.textContent !== shown) where.textContent = shown;
}

export function attribute(where, name, value) {
  if (where.getAttribute(name) !== value) where.setAttribute(name, value);
}

export function style(where, name, value) {
  if (where.style[name] !== value) where.style[name] = value;
}

export function hide(where, is) {
  if (where.hidden !== is) where.hidden = is;
}

/**
 * Has one child for each thing, in their order: known by `key`, made by `make`, and brought up to date by `update`.
 * Children stay as long as there is a thing of their key.
 */
export function each(parent, things, key, make, update) {
  const known = parent.known ?? (parent.known = new Map());
  const wanted = new Set(things.map(key));
  for (const [name, child] of known) {
    if (!wanted.has(name)) {
      child.remove();
      known.delete(name);
    }
  }
  let next = parent.firstElementChild;
  for (const thing of things) {
    const name = key(thing);
    let child = known.get(name);
    if (!child) {
      child = make(thing);
      known.set(name, child);
    }
    if (child === next) next = next.nextElementSibling;
    else parent.insertBefore(child, next);
    update(child, thing);
  }
}
