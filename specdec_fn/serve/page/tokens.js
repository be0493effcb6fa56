// The answer as tokens: each in the colour and underline of its kind, and a card that says why it is there.

import { cardOf, visible } from './card.js';

const WIDE = matchMedia('(min-width: 40rem)');

export function tokenView(box, card) {
  let tokens, passes, queue, unplaced, line, active, frame, hiding, marked;

  function clear() {
    cancelAnimationFrame(frame);
    hide();
    document.body.classList.remove('docked');
    [tokens, passes, queue, marked] = [[], [], [], []];
    [unplaced, line, active, frame] = ['', null, -1, 0];
    box.replaceChildren();
  }

  // One chunk: what the text grew by, and the pass that it came from, where the server tells.
  function add(text, told) {
    unplaced += text;
    if (told) {
      const pass = { number: passes.length + 1, base: told.base, nodes: told.proposed, final: told.final };
      passes.push(pass);
      const pieces = [...told.pieces];
      const emit = (node) => queue.push({ node, pass, left: (pieces.shift() ?? '').length, cls: `t ${node.kind}` });
      pass.nodes.filter((node) => node.kind === 'accepted').forEach(emit);
      pass.nodes.forEach((node) => node.kind === 'accepted' || queue.push({ node, pass, cls: `draft ${node.kind}` }));
      if (pass.final) emit(pass.final);
    } else if (!passes.length && text) {
      queue.push({ left: text.length, cls: 't' });
    }
    frame ||= requestAnimationFrame(() => place());
  }

  // The text is the truth: pieces only say how it is divided, and may run ahead of it where a stop string may be beginning.
  function place() {
    frame = 0;
    const follow = innerHeight + scrollY > document.documentElement.scrollHeight - 60 && scrollY > 0;
    while (queue.length) {
      const item = queue[0];
      if (item.left === undefined) {
        item.el = append(item.cls, visible(item.node.text));
      } else {
        if (item.left && !unplaced) break;
        const part = unplaced.slice(0, item.left);
        unplaced = unplaced.slice(part.length);
        item.left -= part.length;
        if (item.el) item.el.append(part);
        else emitted(item, part);
        if (item.left) break;
        if (part.endsWith('\n')) {
          item.el.classList.toggle('break', !item.el.textContent.trim()); // which would have no place to point at
          line = null;
        }
      }
      queue.shift();
    }
    if (follow) scrollTo(0, document.documentElement.scrollHeight);
  }

  function emitted(item, part) {
    item.el = append(item.cls, part);
    if (!item.node) return;
    item.el.dataset.i = tokens.length;
    item.pass.first ??= tokens.length;
    tokens.push(item);
    if (active < 0) activate(0);
  }

  function append(cls, text) {
    if (!line) {
      line = document.createElement('div'); // a block a line: what is laid out already is not laid out again
      box.append(line);
    }
    const el = document.createElement('span');
    el.className = cls;
    if (text) el.textContent = text;
    line.append(el);
    return el;
  }

  // Nothing more will come: what has no text of its own, as a stop that was cut off, still gets its place.
  function end() {
    cancelAnimationFrame(frame);
    place();
    for (const item of queue) {
      if (item.left === undefined) append(item.cls, visible(item.node.text));
      else if (!item.el) emitted(item, '');
    }
    queue = [];
    if (unplaced) (tokens.at(-1)?.el ?? append('t', '')).append(unplaced);
    unplaced = '';
  }

  // Only one token is in the order of the Tab key; arrow keys go on from there.
  function activate(i, focus = false) {
    const before = tokens[active]?.el;
    for (const name of ['tabindex', 'role', 'aria-label', 'aria-describedby']) before?.removeAttribute(name);
    active = i;
    const { el, node } = tokens[i];
    el.setAttribute('tabindex', '0');
    el.setAttribute('role', 'button');
    el.setAttribute('aria-label', `${visible(el.textContent)}, ${node.kind}`);
    el.setAttribute('aria-describedby', card.id);
    if (focus) el.focus();
  }

  function show(el) {
    clearTimeout(hiding);
    const item = tokens[el.dataset.i];
    if (!item) return;
    mark(item);
    card.replaceChildren(cardOf(item.node, item.pass));
    card.hidden = false;
    card.style.cssText = '';
    if (!WIDE.matches) {
      document.body.classList.add('docked'); // the card lies along the bottom there, and not on what it is about
      el.scrollIntoView({ block: 'nearest' });
      return;
    }
    const at = el.getClientRects()[0] ?? el.getBoundingClientRect(), size = card.getBoundingClientRect();
    const below = at.bottom + 8 + size.height < innerHeight || at.top < size.height + 8;
    card.style.left = `${Math.max(8, Math.min(at.left, document.documentElement.clientWidth - size.width - 8))}px`;
    card.style.top = `${scrollY + (below ? at.bottom + 8 : at.top - size.height - 8)}px`;
  }

  function mark(item) {
    marked.forEach((el) => el.classList.remove('same', 'now'));
    marked = [];
    for (let i = item?.pass.first; tokens[i]?.pass === item?.pass && item; i += 1) {
      tokens[i].el.classList.add('same');
      marked.push(tokens[i].el);
    }
    item?.el.classList.add('now');
  }

  function hide() {
    clearTimeout(hiding);
    if (marked) mark(null);
    card.hidden = true;
  }

  const later = () => {
    clearTimeout(hiding);
    hiding = setTimeout(() => {
      const focused = box.contains(document.activeElement) && document.activeElement;
      if (focused) show(focused);
      else hide();
    }, 200);
  };

  function row(step) {
    const at = tokens[active].el.getBoundingClientRect(), middle = at.left + at.width / 2;
    let best = active, off = Infinity, top = null;
    for (let i = active + step; tokens[i]; i += step) {
      const rect = tokens[i].el.getClientRects()[0];
      if (!rect || Math.abs(rect.top - at.top) < at.height / 2) continue;
      top ??= rect.top;
      if (Math.abs(rect.top - top) > at.height / 2) break;
      const away = Math.abs(rect.left + rect.width / 2 - middle);
      if (away < off) [best, off] = [i, away];
    }
    return best;
  }

  box.addEventListener('keydown', (event) => {
    if (active < 0 || event.ctrlKey || event.altKey || event.metaKey) return;
    const goals = { ArrowRight: () => active + 1, ArrowLeft: () => active - 1, ArrowDown: () => row(1), ArrowUp: () => row(-1), Home: () => 0, End: () => tokens.length - 1 };
    if (event.key === 'Enter' || event.key === ' ') show(tokens[active].el);
    else if (!goals[event.key]) return;
    else activate(Math.max(0, Math.min(goals[event.key](), tokens.length - 1)), true);
    event.preventDefault();
  });
  box.addEventListener('focusin', (event) => show(event.target));
  box.addEventListener('focusout', later);
  box.addEventListener('pointerover', (event) => {
    if (event.pointerType !== 'touch' && WIDE.matches && event.target.dataset.i) show(event.target);
  });
  box.addEventListener('pointerleave', later);
  box.addEventListener('click', (event) => {
    if (!event.target.dataset.i) return;
    activate(Number(event.target.dataset.i), true);
    show(event.target);
  });
  card.addEventListener('pointerenter', () => clearTimeout(hiding));
  card.addEventListener('pointerleave', later);
  clear();
  return {
    clear, add, end, hide,
    get open() { return !card.hidden; },
    get text() { return [...box.querySelectorAll('.t')].map((el) => el.textContent).join(''); },
  };
}
