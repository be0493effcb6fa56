// What decided a token, and the pass that it came from, in numbers.

const MARKS = { accepted: '✓', rejected: '✗', unread: '·', recovered: '↺', bonus: '+', plain: '=' };

// A text with its blanks made visible, for places where a token stands alone.
export const visible = (text) => (text === '' ? '∅' : text.replace(/ /g, '␣').replace(/\n/g, '⏎').replace(/\t/g, '⇥'));

export function number(value) {
  if (value === null || value === undefined) return '–';
  if (value === 0 || value === 1) return String(value);
  if (value < 0.0005) return value.toExponential(1);
  if (value < 1 && value >= 0.99995) return `1 − ${(1 - value).toExponential(1)}`;
  return value.toFixed(value < 10 ? 4 : 1);
}

function h(name, about, ...inside) {
  const el = document.createElement(name);
  for (const [key, value] of Object.entries(about ?? {})) el.setAttribute(key, value);
  el.append(...inside);
  return el;
}

export function cardOf(node, pass) {
  const token = h('span', { class: `t ${node.kind}` }, visible(node.text));
  const head = h('p', { class: 'what' }, token, h('b', {}, node.kind), h('small', {}, `id ${node.token}`));
  const made = document.createDocumentFragment();
  made.append(head, ...laws(node), h('p', { class: 'why' }, ...why(node, pass)), ...decided(node, pass), table(node, pass));
  return made;
}

// p and q as bars of one length.
function laws(node) {
  const bar = (name, value, about) => {
    const fill = h('span', { class: `fill ${name}` });
    fill.style.width = `${100 * Math.min(1, value)}%`;
    return h('p', { class: 'law' }, h('abbr', { title: about }, name), h('span', { class: 'track' }, fill), h('data', { value }, number(value)));
  };
  const found = [bar('p', node.p, 'probability under the target, after all processors')];
  if (node.q !== null && node.q !== undefined) found.push(bar('q', node.q, 'probability under the draft'));
  return found;
}

function why(node, pass) {
  const n = (name, value) => h('span', { class: 'n' }, `${name} ${number(value)}`);
  if (node.kind === 'accepted') {
    if (node.bound !== null && node.u !== null) return ['Accepted: ', n('u', node.u), ' is below its bound ', n('', node.bound), '.'];
    if (node.bound !== null) return ['Accepted: ', n('p', node.p), ' is above its bound ', n('', node.bound), '.'];
    if (node.noise !== null) return ['Accepted: it won the race at its position, with noise ', n('', node.noise), '.'];
    return ['Accepted; no number of its own decided.'];
  }
  const picked = node.u !== null ? ['; ', n('u', node.u), ' picked it.'] : node.noise !== null ? ['; it won the race, with noise ', n('', node.noise), '.'] : ['.'];
  if (node.kind === 'bonus') return ['Drawn from p, since the whole draft was accepted', ...picked];
  if (node.kind === 'plain') return ['Drawn from p, since nothing was drafted', ...picked];
  const lost = pass.nodes.filter((one) => one.kind === 'rejected' && one.parent === node.parent);
  if (!lost.length) return ['Drawn from what the draft left of p', ...picked];
  const names = lost.flatMap((one, i) => [i ? ', ' : '', h('span', { class: 'draft rejected' }, visible(one.text))]);
  return ['In place of ', ...names, ', which ', lost.length > 1 ? 'were' : 'was', ' rejected', ...picked];
}

// The unit interval, filled up to the bound, with u on it.
function decided(node, pass) {
  const judged = node.kind === 'accepted' ? node : pass.nodes.find((one) => one.kind === 'rejected' && one.parent === node.parent);
  if (!judged || judged.u === null || judged.bound === null || node.kind === 'bonus') return [];
  const fill = h('span', { class: 'fill bound' }), tick = h('span', { class: 'tick' });
  fill.style.width = `${100 * Math.min(1, Math.max(0, judged.bound))}%`;
  tick.style.left = `${100 * judged.u}%`;
  const sign = judged.u < judged.bound ? '<' : '≥';
  const close = number(judged.u) === number(judged.bound), told = (value) => (close ? String(value) : number(value));
  const note = `${judged === node ? '' : `${visible(judged.text)}: `}u ${told(judged.u)} ${sign} bound ${told(judged.bound)}`;
  return [h('div', { class: 'line', role: 'img', 'aria-label': note }, h('span', { class: 'track' }, fill, tick), h('small', {}, note))];
}

function table(node, pass) {
  const depths = [], chain = pass.nodes.every((one, i) => one.parent === i - 1);
  pass.nodes.forEach((one) => depths.push(one.parent < 0 ? 0 : depths[one.parent] + 1));
  const row = (one, depth) => {
    const name = h('th', { scope: 'row' }, h('span', { class: one.kind === 'rejected' || one.kind === 'unread' ? `draft ${one.kind}` : `t ${one.kind}` }, visible(one.text)));
    if (!chain) name.style.paddingInlineStart = `${0.75 * depth}rem`;
    const mark = h('td', { title: one.kind, 'aria-label': one.kind }, MARKS[one.kind]);
    const cells = [one.p, one.q, one.u, one.bound].map((value) => h('td', {}, number(value)));
    return h('tr', one === node ? { class: 'here', 'aria-current': 'true' } : {}, mark, name, ...cells);
  };
  const rows = pass.nodes.map((one, i) => row(one, depths[i]));
  if (pass.final) rows.push(row(pass.final, pass.final.parent < 0 ? 0 : depths[pass.final.parent] + 1));
  const head = h('tr', {}, h('td'), ...['token', 'p', 'q', 'u', 'bound'].map((name) => h('th', { scope: 'col' }, name)));
  const kept = pass.nodes.filter((one) => one.kind === 'accepted').length;
  const caption = h('caption', {}, `Pass ${pass.number}, after ${pass.base} tokens: `, pass.nodes.length ? `${kept} of ${pass.nodes.length} drafted accepted` : 'nothing drafted');
  return h('table', {}, caption, h('thead', {}, head), h('tbody', {}, ...rows));
}
