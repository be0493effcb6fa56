// The page: what is asked, what comes, and what went wrong.

import { meters } from './meters.js';
import { Failure, ask, chunks } from './stream.js';
import { tokenView } from './tokens.js';

const EXAMPLES = {
  pattern: ['completion', 'A cow is an animal that lives on a farm and eats grass.\nA bear is an animal that lives in a forest and eats fish.\nA camel is an animal that'],
  quote: ['chat', 'Repeat this text twice, word for word:\n\nThe quick brown fox jumps over the lazy dog. The lazy dog sleeps in the warm sun while the quick brown fox runs away.'],
  prose: ['chat', 'Tell me about the moon in a few sentences.'],
};
const NUMBERS = ['temperature', 'top_p', 'top_k', 'min_p', 'seed', 'max_tokens'];

const find = (id) => document.getElementById(id);
const form = find('form'), prompt = find('prompt'), key = find('key');
const meter = meters(find), view = tokenView(find('output'), find('card'));
let model = null, running = null, seed = null, waiting = null;

// --- what is asked

const text = (name) => form.elements[name].value.trim();

function asked() {
  const chat = form.elements.mode.value === 'chat';
  const body = { model: model.id };
  if (chat) body.messages = [{ role: 'user', content: prompt.value }];
  else body.prompt = prompt.value;
  for (const name of NUMBERS) if (text(name) !== '') body[name] = Number(text(name));
  const stop = form.elements.stop.value.split('\n').filter(Boolean).map((one) => one.replaceAll('\\n', '\n'));
  if (stop.length) body.stop = stop;
  body.speculation = { proposer: text('proposer'), verifier: text('verifier'), explain: true };
  if (text('k') !== '') body.speculation.k = Number(text('k'));
  return [chat ? 'v1/chat/completions' : 'v1/completions', { ...body, stream: true, stream_options: { include_usage: true } }];
}

function curl() {
  const [path, body] = asked();
  const quoted = JSON.stringify(body, null, 1).replaceAll("'", "'\\''");
  const held = key.value ? ' \\\n  -H "Authorization: Bearer $SPECDEC_API_KEY"' : ''; // the key itself stays out of clipboards
  return `curl -N ${new URL(path, location.href)} \\\n  -H 'Content-Type: application/json'${held} \\\n  -d '${quoted}'`;
}

// --- what comes

async function send() {
  if (running || !form.reportValidity()) return;
  blame(null);
  const control = new AbortController();
  running = control;
  busy(true);
  view.clear();
  let reason = null;
  try {
    await known();
    const [path, body] = asked();
    meter.reset(body.speculation.k ?? model.speculation.k);
    say('Waiting for the first token …');
    for await (const chunk of chunks(path, body, { key: key.value, signal: control.signal })) {
      seed = chunk.seed ?? seed;
      const choice = chunk.choices[0];
      if (!choice) continue;
      const told = choice.speculation;
      if (told) {
        if (!meter.passes) say('Generating …');
        meter.pass(told);
      }
      view.add(choice.text ?? choice.delta?.content ?? '', told);
      reason = choice.finish_reason ?? reason;
    }
    done(`Finished (${reason})`);
  } catch (error) {
    if (control.signal.aborted) done('Stopped');
    else {
      done(meter.passes ? 'Broken off' : '');
      blame(error);
    }
  } finally {
    running = null;
    busy(false);
  }
}

function done(how) {
  view.end();
  meter.draw();
  if (!meter.passes) {
    say(how);
    return;
  }
  const use = document.createElement('button');
  Object.assign(use, { type: 'button', className: 'quiet', textContent: `seed ${seed}`, title: 'Use this seed again' });
  use.addEventListener('click', () => { find('seed').value = seed; });
  say(`${how}: ${meter.tokens} tokens in ${meter.seconds.toFixed(1)} s, `, ...(seed === null ? [] : [use]));
}

const say = (...what) => find('status').replaceChildren(...what);

function busy(on) {
  find('send').disabled = on;
  find('halt').disabled = !on;
  find('output').setAttribute('aria-busy', on);
  document.body.classList.toggle('busy', on);
}

// --- what went wrong

function blame(error) {
  for (const field of form.querySelectorAll('[aria-invalid]')) field.removeAttribute('aria-invalid');
  find('error').textContent = error?.message ?? '';
  if (!error) return;
  if (!(error instanceof Failure)) console.error(error);
  if (error.status === 401) {
    find('keyfield').hidden = false;
    key.focus();
  }
  const [first = '', second = ''] = error.param?.split(/[.[]/) ?? [];
  const field = find({ messages: 'prompt', speculation: second }[first] ?? first);
  if (form.contains(field)) field.setAttribute('aria-invalid', 'true');
}

// --- what the server has

function known() {
  waiting ??= learn().catch((error) => {
    waiting = null;
    throw error;
  });
  return waiting;
}

async function learn() {
  const { data } = await (await ask('v1/models', {}, key.value)).json();
  [model] = data;
  const { proposers, verifiers, proposer, verifier, k, max_k: most } = model.speculation;
  find('model').textContent = `${model.id}, ${model.context_length.toLocaleString('en')} tokens of context`;
  for (const [id, names, own] of [['proposer', proposers, proposer], ['verifier', verifiers, verifier]]) {
    find(id).replaceChildren(...names.map((name) => new Option(name, name, name === own, name === own)));
  }
  Object.assign(find('k'), { value: k, max: most });
  meter.reset(k);
}

// --- hands on it

form.addEventListener('submit', (event) => {
  event.preventDefault();
  send();
});
find('halt').addEventListener('click', () => running?.abort());
find('drafts').addEventListener('change', (event) => document.body.classList.toggle('drafts', event.target.checked));
addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    send();
  } else if (event.key === 'Escape') {
    view.hide();
    running?.abort();
  }
});
for (const button of document.querySelectorAll('[data-example]')) {
  button.addEventListener('click', () => {
    [form.elements.mode.value, prompt.value] = EXAMPLES[button.dataset.example];
    prompt.focus();
  });
}
const copying = (id, made) => find(id).addEventListener('click', async (event) => {
  const button = event.currentTarget, name = button.textContent;
  try {
    await known();
    await navigator.clipboard.writeText(made());
    button.textContent = 'Copied';
  } catch (error) {
    if (error instanceof Failure) blame(error);
    else button.textContent = 'Not allowed here';
  }
  setTimeout(() => { button.textContent = name; }, 1500);
});
copying('curl', curl);
copying('copy', () => view.text);
key.addEventListener('change', () => { known().then(() => blame(null), blame); });

const wide = matchMedia('(min-width: 60rem)'), fold = () => { find('settings').open = wide.matches; };
wide.addEventListener('change', fold);
fold();
[form.elements.mode.value, prompt.value] = EXAMPLES.pattern;
known().catch(blame);
