-- The pipeline of orders.yaml, written in SQL: five statements around queries that Spark understands.
--
--   millrace pipeline run examples/pipelines/orders.sql --once

CREATE PIPELINE orders_by_sql WITH (
  bootstrap.servers = '${MILLRACE_BOOTSTRAP:-127.0.0.1:9092}',
  checkpoint = 'checkpoints/orders-by-sql',
  trigger = 'every 5 seconds'
);

CREATE FUNCTION tidy_name WITH (call = 'order_functions:tidy_name', returns = 'string');

CREATE SOURCE orders WITH (
  topic = 'orders',
  format = 'json',
  schema = 'order_id bigint, customer_id int, amount double, paid boolean, at timestamp',
  dead_letters = 'orders-unreadable',
  watermark = 'at 10 minutes',
  options.maxOffsetsPerTrigger = 100000
);

CREATE SOURCE customers WITH (
  files = 'data/customers.csv',
  schema = 'customer_id int, name string, country string',
  options.header = TRUE
);

CREATE VIEW paid_orders WITH (deduplicate = 'order_id') AS
SELECT order_id, customer_id, amount, at FROM orders WHERE paid;

CREATE VIEW known_orders AS
SELECT o.order_id, o.amount, o.at, tidy_name(c.name) AS customer, c.country
FROM paid_orders o
JOIN customers c ON o.customer_id = c.customer_id;

CREATE SINK archive FROM known_orders WITH (delta = 'lake/orders-by-sql', partition_by = 'country');

CREATE SINK revenue WITH (topic = 'revenue', key = 'country', format = 'json') AS
SELECT window.start AS minute, country, count(*) AS orders, round(sum(amount), 2) AS amount
FROM known_orders
GROUP BY window(at, '1 minute'), country;
